// Command nyala-master is Nyala's master: it keeps the catalog, places replicas, and says where tablets are.
package main
