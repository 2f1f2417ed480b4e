// Command scan measures reading a table of 8 tablets with three replicas by `nyala perf table_scan`: rows a second, as the tool times
// it, of all columns, of the key alone, and of the number of rows.
//
//	go run ./bench/scan [-rounds 3] [-rows 2000000] [-kudu FOLDER]
//
// With -kudu, the folder of an unpacked release, `kudu perf table_scan` reads a table of the same rows in turns with ours. It is read
// right after the load: what either has in memory then it reads from there.
package main
