// Package ntptest is a small NTP server for tests: it tells the true time, lies, says nothing or nonsense, or asks for peace.
package ntptest
