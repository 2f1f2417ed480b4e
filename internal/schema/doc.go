// Package schema is the data model: types, columns and schemas, values and their bytes, row operations, keys, partitions and
// predicates, and the text forms of all of them. Everything above speaks of rows through it, and nothing here does I/O.
//
// # Main types
//
//   - Schema: a table's columns at one version, immutable. New checks one that exists, NewTable makes a new table's.
//   - Value: one cell in memory. Column turns it into value bytes (AppendValueBytes, ValueFromBytes) and text (ParseText,
//     AppendText).
//   - OpsEncoder, OpsDecoder: row operations as they travel and stand in the log.
//   - Schema.EncodeKey, DecodeKey: the primary key as one string of bytes that sorts as the row does.
//   - PartitionSchema, Partition: which tablet a row belongs to. RangeSpec is a range as people give it, ParseRanges reads it.
//   - Alteration: makes a schema's next version.
//   - Predicate, BoundPredicate: a condition on a column, by name and made ready for a schema; Schema.KeyBounds turns
//     predicates on the key into a range of keys. ParseWhere reads predicates as people write them, ParseColumnSpecs columns.
//
// # Invariants
//
//	I1: a Schema has 1 to 300 columns, its key columns first, at least one, none of them nullable or of a type without a key form;
//	    names and ids are unique, ids below NextColumnID.
//	I2: for rows a, b of one schema: bytes.Compare(EncodeKey(a), EncodeKey(b)) has the sign of comparing a and b column by column.
//	I3: EncodeKey(DecodeKey(k)) = k for every k that DecodeKey accepts, and DecodeKey(EncodeKey(r)) = r.
//	I4: every row's partition key is in exactly one of Partitions(), and in that one whose buckets it begins with.
//	I5: a row that matches all of preds has start <= key < stop for KeyBounds(preds), which says none only if no row matches.
//	I6: what OpsEncoder wrote OpsDecoder reads as the same operations without a row error; no input makes a decoder panic, read
//	    outside it or allocate by what a length field claims.
//	I7: FormatText's form reads back through ParseText as the same value wherever ParseText knows the form.
//
// The encodings are on-disk and wire formats that never change: docs/format/rows.md (value bytes, row operations) and
// docs/format/keys.md (keys, partition keys, the hash). They are Kudu's, so that Kudu's clients compute the same.
//
// # Concurrency
//
// Schema, Column, PartitionSchema, Partition, Predicate and BoundPredicate are never changed once made and may be shared.
// Encoders and decoders belong to one goroutine.
//
// # Tests
//
// Worked examples of the formats are tables; I2 to I7 are properties checked by rapid against plain models; each decoder of
// foreign bytes and each parser has a fuzz target.
package schema
