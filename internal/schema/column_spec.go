package schema

import (
	"slices"
	"strconv"
	"strings"

	"github.com/nyaladb/nyala/internal/status"
)

// ParseColumnSpecs reads the columns of a new table, as in "id int64, name string null":
//
//	column {, column}
//	column = name type {NULL | NOT NULL | DEFAULT literal | COMMENT 'text'}
//
// Columns are not nullable unless they say so. A literal is as in a where clause: a number, true, false, or what
// Column.ParseText takes in single quotes. A name that isn't a plain word stands in double quotes. Type names are in any
// case; decimal(precision, scale) and varchar(length) take attributes. Which columns are the key, OrderKeyFirst says.
func ParseColumnSpecs(specs string) ([]Column, error) {
	p := &specParser{lexer: lexer{what: "columns", source: specs}}
	if err := p.advance(); err != nil {
		return nil, err
	}
	var columns []Column
	for {
		c, err := p.column()
		if err != nil {
			return nil, err
		}
		columns = append(columns, c)
		if p.tok.kind == tokenEnd {
			return columns, nil
		}
		if !p.tok.is(",") {
			return nil, p.fault(p.tok.pos, "want a comma or the end, have %v", p.tok)
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
}

// OrderKeyFirst makes the named columns the primary key: it returns the columns with those first, in the order of the names,
// and the others behind them as they stood.
func OrderKeyFirst(columns []Column, key []string) ([]Column, error) {
	if len(key) == 0 {
		return nil, status.New(status.InvalidArgument, "primary key: it needs at least one column")
	}
	out := make([]Column, 0, len(columns))
	for k, name := range key {
		i := slices.IndexFunc(columns, func(c Column) bool { return c.Name == name })
		if i < 0 {
			return nil, status.New(status.InvalidArgument, "primary key: there is no column %q", name)
		}
		if slices.Contains(key[:k], name) {
			return nil, status.New(status.InvalidArgument, "primary key: column %q is named twice", name)
		}
		c := columns[i]
		c.Key = true
		out = append(out, c)
	}
	for _, c := range columns {
		if !slices.Contains(key, c.Name) {
			c.Key = false
			out = append(out, c)
		}
	}
	return out, nil
}

type specParser struct {
	lexer

	tok token
}

func (p *specParser) advance() error {
	var err error
	p.tok, err = p.next()
	return err
}

func (p *specParser) column() (Column, error) {
	name := p.tok
	if name.kind != tokenWord && name.kind != tokenName {
		return Column{}, p.fault(name.pos, "want a column name, have %v", name)
	}
	c := Column{Name: name.text}
	if err := p.advance(); err != nil {
		return Column{}, err
	}
	if err := p.typeOf(&c); err != nil {
		return Column{}, err
	}
	seen := make(map[string]bool)
	for p.tok.kind != tokenEnd && !p.tok.is(",") {
		if err := p.clause(&c, seen); err != nil {
			return Column{}, err
		}
	}
	return c, nil
}

// clause reads one of those that may follow a type.
func (p *specParser) clause(c *Column, seen map[string]bool) error {
	first, not := p.tok, p.tok.is("not")
	word := strings.ToUpper(first.text)
	switch {
	case not:
		if err := p.advance(); err != nil {
			return err
		}
		if !p.tok.is("null") {
			return p.fault(p.tok.pos, "want NULL after NOT, have %v", p.tok)
		}
		word = "NULL"
	case !first.is("null") && !first.is("default") && !first.is("comment"):
		return p.fault(first.pos, "want NULL, NOT NULL, DEFAULT, COMMENT, a comma or the end after column %q, have %v", c.Name, first)
	}
	if seen[word] {
		return p.fault(first.pos, "column %q: %s stands there twice", c.Name, word)
	}
	seen[word] = true
	if err := p.advance(); err != nil {
		return err
	}
	switch word {
	case "NULL":
		c.Nullable = !not
		return nil
	case "DEFAULT":
		return p.defaultOf(c)
	default:
		if p.tok.kind != tokenText {
			return p.fault(p.tok.pos, "want a comment in single quotes, have %v", p.tok)
		}
		c.Comment = p.tok.text
		return p.advance()
	}
}

// defaultOf reads the literal of a default.
func (p *specParser) defaultOf(c *Column) error {
	literal := p.tok
	switch {
	case literal.is("null"):
		return p.fault(literal.pos, "column %q: a default can't be NULL: a nullable column without a default stores NULL", c.Name)
	case literal.kind != tokenText && literal.kind != tokenNumber && !literal.is("true") && !literal.is("false"):
		return p.fault(literal.pos, "want the default of column %q, have %v: strings stand in single quotes", c.Name, literal)
	case literal.kind != tokenText && (c.Type == String || c.Type == Varchar):
		return p.fault(literal.pos, "%s takes a string in single quotes, as in %s", c.label(), quoteText(literal.text))
	}
	v, err := c.ParseText(literal.text)
	if err == nil {
		c.WriteDefault, err = c.DefaultValueBytes(v)
	}
	if err != nil {
		return p.fault(literal.pos, "%v", err)
	}
	return p.advance()
}

// typeOf reads a type and its attributes.
func (p *specParser) typeOf(c *Column) error {
	name := p.tok
	if name.kind != tokenWord {
		return p.fault(name.pos, "want the type of column %q, have %v", c.Name, name)
	}
	if err := p.advance(); err != nil {
		return err
	}
	args, err := p.attributes()
	if err != nil {
		return err
	}
	lower := strings.ToLower(name.text)
	switch {
	case lower == "decimal" && (len(args) == 1 || len(args) == 2):
		if n := args[0].n; n < 1 || n > maxPrecision {
			return p.fault(args[0].pos, "column %q: the precision of a decimal is 1 to %d", c.Name, maxPrecision)
		}
		c.Precision = args[0].small()
		if len(args) == 2 {
			c.Scale = args[1].small()
		}
		c.Type = decimalType(c.Precision)
		return nil
	case lower == "varchar" && len(args) == 1:
		c.Type, c.Length = Varchar, uint16(min(args[0].n, MaxVarcharLength))
		if args[0].n > MaxVarcharLength {
			return p.fault(args[0].pos, "the length of a varchar is 1 to %d", MaxVarcharLength)
		}
		return nil
	case lower == "decimal":
		return p.fault(name.pos, "column %q: a decimal needs a precision, as in decimal(9) or decimal(9, 2)", c.Name)
	case lower == "varchar":
		return p.fault(name.pos, "column %q: a varchar needs a length, as in varchar(100)", c.Name)
	case len(args) > 0:
		return p.fault(args[0].pos, "column %q: the type %s takes no attributes", c.Name, lower)
	}
	if c.Type, err = ParseType(lower); err != nil {
		return p.fault(name.pos, "column %q: %v", c.Name, err)
	}
	return nil
}

// maxPrecision is the most digits that any decimal type holds.
const maxPrecision = 38

// decimalType is the narrowest type that holds the precision.
func decimalType(precision uint8) Type {
	switch {
	case precision <= 9:
		return Decimal32
	case precision <= 18:
		return Decimal64
	default:
		return Decimal128
	}
}

type attribute struct {
	n, pos int
}

// small is the attribute as a byte; what doesn't fit becomes 255, which no precision or scale may be.
func (a attribute) small() uint8 { return uint8(min(a.n, 255)) }

// attributes reads numbers in parentheses, if there are any.
func (p *specParser) attributes() ([]attribute, error) {
	if !p.tok.is("(") {
		return nil, nil
	}
	var out []attribute
	for {
		if err := p.advance(); err != nil {
			return nil, err
		}
		n, err := strconv.Atoi(p.tok.text)
		if err != nil || n < 0 || p.tok.kind != tokenNumber {
			return nil, p.fault(p.tok.pos, "want a number, have %v", p.tok)
		}
		out = append(out, attribute{n: n, pos: p.tok.pos})
		if err := p.advance(); err != nil {
			return nil, err
		}
		if p.tok.is(")") {
			return out, p.advance()
		}
		if !p.tok.is(",") {
			return nil, p.fault(p.tok.pos, "want , or ), have %v", p.tok)
		}
	}
}
