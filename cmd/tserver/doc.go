// Command nyala-tserver is Nyala's tablet server: it holds replicas of tablets and answers reads and writes.
package main
