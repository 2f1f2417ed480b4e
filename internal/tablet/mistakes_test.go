//go:build planted

package tablet

// mistakes are those that TestRandom must find.
var mistakes = []mistake{
	// What a snapshot shows.
	{"a scan sees the write at its snapshot", "cursor.go", "if «ts >= c.snapshot» {\n\t\treturn nil", "ts > c.snapshot"},
	{"a scan misses the write just below its snapshot", "cursor.go", "if «ts >= c.snapshot» {\n\t\treturn nil", "ts+1 >= c.snapshot"},
	{"a row that begins at the snapshot counts as unfinished", "cursor.go", "!c.decided && «c.lastSeen < c.snapshot»", "c.lastSeen <= c.snapshot"},
	{"a step goes on behind the next version", "cursor.go", "«min(c.lastSeen, c.snapshot)-1»", "max(min(c.lastSeen, c.snapshot), 11)-11"},
	{"a jump over new versions lands behind the snapshot", "cursor.go", "«c.snapshot-1»)\n\t\t\treturn", "c.snapshot-2"},
	{"an older version hides a newer one", "folder.go", "if «c.filled» {\n\t\t\tcontinue", "false"},
	{"what lies before a whole row shows through", "folder.go", "if «kind == wholeRow» &&", "false"},
	{"a row that was changed in part needs no older version", "folder.go", "return «f.unfilled == 0», nil", "true"},

	// Bounds of scans.
	{"a scan returns the row at its stop key", "cursor.go", "«appendRowPrefix(c.upper[:0], t.number, stop)»", "appendTimestamp(appendRowPrefix(c.upper[:0], t.number, stop), 0)"},
	{"a scan leaves out the row at its start key", "cursor.go", "«appendRowPrefix(c.lower[:0], t.number, start)»", "appendTimestamp(appendRowPrefix(c.lower[:0], t.number, start), 0)"},
	{"a scan returns again the row that it goes on after", "cursor.go", "c.row, c.decided = appendRowPrefix(nil, t.number, after), «true»", "false"},
	{"a scan goes on after a row only if that isn't its first", "cursor.go", "«bytes.Compare(after, start) >= 0»", "bytes.Compare(after, start) > 0"},
	{"predicates widen the bounds from below", "scanner.go", "«bytes.Compare(start, spec.Start) > 0»", "bytes.Compare(start, spec.Start) < 0"},
	{"predicates widen the bounds from above", "scanner.go", "«bytes.Compare(stop, spec.Stop) < 0»", "bytes.Compare(stop, spec.Stop) > 0"},
	{"a block holds one row above the limit", "scanner.go", "«uint64(b.Rows) == s.left», nil", "uint64(b.Rows) == s.left+1"},
	{"a scan goes on after its limit", "scanner.go", "more = more && «s.left > 0»", "true"},
	{"the rest of a row is the next row", "cursor.go", "return «!c.sameRow(it.Key())» ||", "true"},
	{"the next row is jumped over", "cursor.go", "return «!c.sameRow(it.Key())» ||", "false"},
	{"a row whose key goes on is the same row", "cursor.go", "return «len(key) == len(c.row)+tsSuffixLen» &&", "len(key) >= len(c.row)+tsSuffixLen"},
	{"inclusive upper bounds of a key are exclusive", "../schema/key_bounds.go", "return «append(key, 0)»", "key"},
	{"the byte behind 255 is 0", "../schema/key_bounds.go", "if «prefix[last] < 0xff» {", "true"},
	{"equal bounds leave nothing", "../schema/key_bounds.go", "return «c > 0» || c == 0 && iv.hiOpen", "c >= 0"},

	// The order of keys.
	{"versions count in the order of rows", "comparer.go", "if c := «bytes.Compare(a[:an], b[:bn])»", "bytes.Compare(a, b)"},
	{"negative numbers of 8 bits sort above", "../schema/key.go", "return append(dst, «cell[0]^0x80»)", "cell[0]"},
	{"negative numbers of 16 bits sort above", "../schema/key.go", "«binary.LittleEndian.Uint16(cell)^1<<15»", "binary.LittleEndian.Uint16(cell)"},
	{"negative numbers of 32 bits sort above", "../schema/key.go", "«binary.LittleEndian.Uint32(cell)^1<<31»", "binary.LittleEndian.Uint32(cell)"},
	{"negative numbers of 64 bits sort above", "../schema/key.go", "«binary.LittleEndian.Uint64(cell)^1<<63»", "binary.LittleEndian.Uint64(cell)"},
	{"negative numbers of 128 bits sort above", "../schema/key.go", "«binary.LittleEndian.Uint64(cell[8:])^1<<63»", "binary.LittleEndian.Uint64(cell[8:])"},
	{"a value in a key ends with one zero", "../schema/key.go", "return «append(dst, 0, 0)»", "append(dst, 0)"},
	{"zeros of a value in a key are read as they stand", "../schema/key.go", "append(slices.Grow(value, len(key)-from), «key[from:zero+1]»...)", "key[from:zero+2]"},

	// Predicates.
	{"a lower bound is exclusive for integers", "../schema/bound_predicate.go", "return «b.loInt <= v» &&", "b.loInt < v"},
	{"an upper bound is off by one for integers", "../schema/bound_predicate.go", "b.hiInt = «hi - 1»", "hi"},
	{"a lower bound is exclusive for decimals of 128 bits", "../schema/bound_predicate.go", "return «b.lo128.compare(v) <= 0» &&", "b.lo128.compare(v) < 0"},
	{"an upper bound is off by one for decimals of 128 bits", "../schema/bound_predicate.go", "b.hi128 = «hi.prev()»", "hi"},
	{"a lower bound is exclusive for numbers with a point", "../schema/bound_predicate.go", "return «b.loFloat <= v» &&", "b.loFloat < v"},
	{"an upper bound is inclusive for numbers with a point", "../schema/bound_predicate.go", "|| «v < b.hiFloat»", "v <= b.hiFloat"},
	{"NaN is within bounds", "../schema/bound_predicate.go", "return «b.loFloat <= v» &&", "!(b.loFloat > v)"},
	{"-0 and 0 aren't equal", "../schema/bound_predicate.go", "return «v == b.loFloat»", "math.Float64bits(v) == math.Float64bits(b.loFloat)"},
	{"a lower bound is exclusive for strings", "../schema/bound_predicate.go", "return «bytes.Compare(b.loBytes, v) <= 0» &&", "bytes.Compare(b.loBytes, v) < 0"},
	{"an upper bound is inclusive for strings", "../schema/bound_predicate.go", "«bytes.Compare(v, b.hiBytes) < 0»", "bytes.Compare(v, b.hiBytes) <= 0"},
	{"a list's last number doesn't match", "../schema/bound_predicate.go", "«i < len(b.floats)» &&", "i < len(b.floats)-1"},
	{"NULL matches NOT NULL", "../schema/bound_predicate.go", "return «b.test == testNull»", "b.test == testNull || b.test == testNotNull"},
	{"NULL compares as zero", "../schema/bound_predicate.go", "return «b.test == testNull»", "b.test == testNull || b.test == testInt && b.MatchesInt(0)"},

	// What operations do.
	{"a delete is ignored", "rows.go", "a.counts.deleted++\n\t\te.valOff, e.valLen = r.valOff, «r.valLen»", "0"},
	{"a row that was deleted is there", "rows.go", "return «kind != deletedRow», nil", "true"},
	{"a row that was deleted in the same batch is there", "rows.go", "e.exists = «false»\n\t\treturn nil", "true"},
	{"an insert takes the place of a row", "rows.go", "case «r.typ == schema.Insert && e.exists»:\n\t\t\ta.counts.duplicateKey++", "false"},
	{"an update makes a row", "rows.go", "case «(r.typ == schema.Update || r.typ == schema.Delete) && !e.exists»:\n\t\t\ta.rowError", "r.typ == schema.Delete && !e.exists"},
	{"a failed update with IGNORE is an error", "rows.go", "case «r.typ == schema.Update && !e.exists»:\n\t\ta.counts.updateIgnored++", "false"},
	{"a failed insert with IGNORE is an error", "rows.go", "case «r.typ == schema.Insert && e.exists»:\n\t\ta.counts.insertIgnored++", "false"},
	{"an upsert of all columns keeps old cells", "rows.go", "if «r.full» {\n\t\t\tkind = wholeRow", "false"},
	{"an upsert of some columns empties the others", "rows.go", "case «e.exists»:\n\t\t\treturn o.overlayCells", "false"},
	{"an upsert of a new row takes no defaults", "rows.go", "o.setMerged(e, wholeRow, «plan.defaults»,", "[]byte(nil)"},
	{"of two changes of a row in one operation the first holds", "version.go", "if om && («!bm || o.id <= b.id») {", "!bm || o.id < b.id"},
	{"an unset column with a default is NULL", "plan.go", "null: «c.WriteDefault == nil && c.Nullable»,", "c.Nullable"},
	{"a column set to NULL takes its default", "plan.go", "w.add(c.id, op.Cell(c.pos), «op.IsNull(c.pos)»)\n\t\t} else", "false"},
	{"a column that was added reads as NULL", "folder.go", "true, «c.def == nil», true, c.def", "true"},
	{"a column that was added reads as what inserts store now", "folder.go", "def: «col.ReadDefault»}", "col.WriteDefault"},
	{"a column that must be set is left out", "plan.go", "if c := &p.cells[i]; «c.required && (c.pos < 0 || !op.IsSet(c.pos))» {", "false"},
	{"a column that was dropped is written", "plan.go", "if «op.IsSet(i)» {\n\t\t\treturn errDropped", "false"},

	// Crashes, restarts, copies, requests.
	{"replay applies the last entry twice", "batch.go", "if «op.Index <= p.state.applied» {", "false"},
	{"a restart forgets the last entry", "records.go", "applied:   «ident.Index(binary.BigEndian.Uint64(b))»,", "max(ident.Index(binary.BigEndian.Uint64(b)), 1)-1"},
	{"a restart skips the next entry", "records.go", "applied:   «ident.Index(binary.BigEndian.Uint64(b))»,", "ident.Index(binary.BigEndian.Uint64(b))+1"},
	{"keys in memory alone are looked for in files", "committed_rows.go", "if «mayHold(c.recent, hash)» {", "false"},
	{"the gap between two keys holds the upper one", "committed_rows.go", "«bytes.Compare(key, g.upper) < 0»", "bytes.Compare(key, g.upper) <= 0"},
	{"a request below the bound is executed", "requests.go", "case «seq < c.bound»:", "false"},
	{"a request at the bound is stale", "requests.go", "case «seq < c.bound»:", "seq <= c.bound"},
	{"a request is executed again after a restart", "load.go", "requests = «append(requests, r)»", "requests"},
	{"a restart forgets the schemas between the first and the last", "load.go", "schemas[«sc.Version()»] = sc", "min(sc.Version(), 1)"},
	{"a table's new name is lost at a restart", "batch.go", "name != \"\" && «name != meta.record.GetTableName()»", "false"},
	{"a copy has the name that the table began with", "export.go", "rec := proto.CloneOf(«e.record»)", "e.t.record"},
}
