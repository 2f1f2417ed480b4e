package schema

import (
	"strconv"

	"github.com/nyaladb/nyala/internal/status"
)

// RangeText is one range as ParseRanges reads it, with hash dimensions of its own where it has any.
type RangeText struct {
	RangeSpec

	Hash []HashText
}

// HashText is a hash dimension by names.
type HashText struct {
	Columns []string
	Buckets uint32
	Seed    uint32
}

// ParseRangeColumns reads the columns before the colon of "day, host: [low, high), …" and returns them with the rest. Without a
// colon all of it is columns.
func ParseRangeColumns(text string) (columns []string, rest string, err error) {
	p := &rangeParser{lexer: lexer{what: "range", source: text}}
	if err := p.advance(); err != nil {
		return nil, "", err
	}
	if columns, err = p.names(); err != nil {
		return nil, "", err
	}
	switch {
	case p.tok.kind == tokenEnd:
		return columns, "", nil
	case p.tok.is(":"):
		return columns, text[p.tok.pos+1:], nil
	}
	return nil, "", p.faultHere("want a comma, a colon or the end after a column, have %v", p.tok)
}

// ParseRanges reads ranges of the given range columns:
//
//	range {, range}
//	range = ("[" | "(") [bound] "," [bound] (")" | "]") {hash "(" column {, column} ")" ":" buckets [":" seed]}
//	bound = literal | "(" literal {, literal} ")"
//
// A square bracket takes the bound itself in, a round one leaves it out; a bound that isn't there is no bound. Literals are as in
// a where clause. A bound with fewer values than columns leaves the last ones unset.
func ParseRanges(columns []*Column, text string) ([]RangeText, error) {
	p := &rangeParser{lexer: lexer{what: "range", source: text}, columns: columns}
	if err := p.advance(); err != nil {
		return nil, err
	}
	var out []RangeText
	for {
		r, err := p.one()
		if err != nil {
			return nil, err
		}
		out = append(out, r)
		if p.tok.kind == tokenEnd {
			return out, nil
		}
		if err := p.expect(","); err != nil {
			return nil, err
		}
	}
}

type rangeParser struct {
	lexer

	columns []*Column
	tok     token
}

func (p *rangeParser) advance() error {
	var err error
	p.tok, err = p.next()
	return err
}

func (p *rangeParser) faultHere(format string, args ...any) *status.Error {
	return p.fault(p.tok.pos, format, args...)
}

func (p *rangeParser) expect(symbol string) error {
	if !p.tok.is(symbol) {
		return p.faultHere("want %s, have %v", symbol, p.tok)
	}
	return p.advance()
}

func (p *rangeParser) names() ([]string, error) {
	var names []string
	for {
		if p.tok.kind != tokenWord && p.tok.kind != tokenName {
			return nil, p.faultHere("want a column name, have %v", p.tok)
		}
		names = append(names, p.tok.text)
		if err := p.advance(); err != nil {
			return nil, err
		}
		if !p.tok.is(",") {
			return names, nil
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
}

func (p *rangeParser) one() (r RangeText, err error) {
	switch {
	case p.tok.is("["):
	case p.tok.is("("):
		r.LowerExclusive = true
	default:
		return r, p.faultHere("want a range as in [1, 10), have %v", p.tok)
	}
	if err := p.advance(); err != nil {
		return r, err
	}
	if r.Lower, err = p.bound(); err != nil {
		return r, err
	}
	if err := p.expect(","); err != nil {
		return r, err
	}
	if r.Upper, err = p.bound(); err != nil {
		return r, err
	}
	switch {
	case p.tok.is(")"):
	case p.tok.is("]"):
		r.UpperInclusive = true
	default:
		return r, p.faultHere("want ) or ] behind the upper bound, have %v", p.tok)
	}
	if err := p.advance(); err != nil {
		return r, err
	}
	for p.tok.is("hash") {
		h, err := p.hash()
		if err != nil {
			return r, err
		}
		r.Hash = append(r.Hash, h)
	}
	return r, nil
}

// bound reads the values of one bound, none where a comma or a closing bracket is next.
func (p *rangeParser) bound() ([][]byte, error) {
	if p.tok.is(",") || p.tok.is(")") || p.tok.is("]") {
		return nil, nil
	}
	if !p.tok.is("(") {
		v, err := p.value(0)
		return [][]byte{v}, err
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	var values [][]byte
	for {
		v, err := p.value(len(values))
		if err != nil {
			return nil, err
		}
		values = append(values, v)
		if p.tok.is(")") {
			return values, p.advance()
		}
		if err := p.expect(","); err != nil {
			return nil, err
		}
	}
}

func (p *rangeParser) value(k int) ([]byte, error) {
	lit := p.tok
	switch {
	case lit.kind != tokenText && lit.kind != tokenNumber:
		return nil, p.faultHere("want a value, have %v: strings stand in single quotes", lit)
	case k >= len(p.columns):
		return nil, p.faultHere("a bound has more values than the %d range columns", len(p.columns))
	}
	c := p.columns[k]
	if lit.kind != tokenText && (c.Type == String || c.Type == Varchar) {
		return nil, p.faultHere("%s takes a string in single quotes, as in %s", c.label(), quoteText(lit.text))
	}
	v, err := c.ParseText(lit.text)
	if err != nil {
		return nil, p.faultHere("%v", err)
	}
	b, err := c.ValueBytes(v)
	if err != nil {
		return nil, p.faultHere("%v", err)
	}
	return nonNil(b), p.advance()
}

// hash reads a dimension from the word hash on.
func (p *rangeParser) hash() (h HashText, err error) {
	if err := p.advance(); err != nil {
		return h, err
	}
	if err := p.expect("("); err != nil {
		return h, err
	}
	if h.Columns, err = p.names(); err != nil {
		return h, err
	}
	if err := p.expect(")"); err != nil {
		return h, err
	}
	if err := p.expect(":"); err != nil {
		return h, err
	}
	if h.Buckets, err = p.number("a number of buckets"); err != nil || !p.tok.is(":") {
		return h, err
	}
	if err := p.advance(); err != nil {
		return h, err
	}
	h.Seed, err = p.number("a seed")
	return h, err
}

func (p *rangeParser) number(what string) (uint32, error) {
	n, err := strconv.ParseUint(p.tok.text, 10, 32)
	if err != nil || p.tok.kind != tokenNumber {
		return 0, p.faultHere("want %s, have %v", what, p.tok)
	}
	return uint32(n), p.advance()
}
