package schema

import (
	"strings"

	"github.com/nyaladb/nyala/internal/status"
)

// ParseWhere reads a where clause and returns its predicates, all of which must hold:
//
//	distance > 2000 and origin = 'JFK'
//	carrier in ('AA', 'UA') and dep_delay is not null
//	time_hour >= '2013-01-01T10:00:00Z' and "select" <= 3
//
// A clause is conditions joined by AND. A condition is a column, an operator (= < <= > >=) and a literal, or the same with
// sides swapped; column IS NULL, column IS NOT NULL; column IN (literal, …), which matches nothing if the list is empty. Keywords are in any case, column names
// in the table's own; a name that isn't a plain word stands in double quotes. Literals are numbers, true, false, and strings in
// single quotes, within which a quote is written twice; the text is what Column.ParseText takes, so that times and dates are strings.
//
// An empty clause has no predicates. An error is a *status.Error with code InvalidArgument that says where and what.
func ParseWhere(s *Schema, clause string) ([]Predicate, error) {
	p := &whereParser{schema: s, lexer: lexer{what: "where clause", source: clause}}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if p.tok.kind == tokenEnd {
		return nil, nil
	}
	var preds []Predicate
	for {
		pred, err := p.condition()
		if err != nil {
			return nil, err
		}
		preds = append(preds, pred)
		switch {
		case p.tok.kind == tokenEnd:
			return preds, nil
		case p.tok.is("or"):
			return nil, p.faultHere("OR isn't supported: conditions are joined by AND (for several values of one column use IN)")
		case !p.tok.is("and"):
			return nil, p.faultHere("want AND or the end, have %v", p.tok)
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
}

type whereParser struct {
	lexer

	schema *Schema
	tok    token
}

func (p *whereParser) advance() error {
	var err error
	p.tok, err = p.next()
	return err
}

// faultHere is an error at the current token.
func (p *whereParser) faultHere(format string, args ...any) *status.Error {
	return p.fault(p.tok.pos, format, args...)
}

func (p *whereParser) condition() (Predicate, error) {
	switch {
	case p.tok.is("not"):
		return Predicate{}, p.faultHere("NOT isn't supported here: only IS NOT NULL is")
	case p.tok.is("("):
		return Predicate{}, p.faultHere("parentheses are supported only after IN")
	case p.atLiteral():
		return p.swapped()
	}
	c, err := p.column()
	if err != nil {
		return Predicate{}, err
	}
	op := p.tok
	if err := p.advance(); err != nil {
		return Predicate{}, err
	}
	switch {
	case op.is("is"):
		return p.nullTest(c)
	case op.is("in"):
		return p.inList(c)
	case comparison(op.text) == nil || op.kind != tokenSymbol:
		return Predicate{}, p.badOperator(op)
	}
	v, err := p.literal(c)
	if err != nil {
		return Predicate{}, err
	}
	return comparison(op.text)(c, v), nil
}

// swapped reads a literal, an operator and a column.
func (p *whereParser) swapped() (Predicate, error) {
	lit := p.tok
	if err := p.advance(); err != nil {
		return Predicate{}, err
	}
	op := p.tok
	build := comparison(mirrored(op.text))
	if op.kind != tokenSymbol || build == nil {
		return Predicate{}, p.badOperator(op)
	}
	if err := p.advance(); err != nil {
		return Predicate{}, err
	}
	c, err := p.column()
	if err != nil {
		return Predicate{}, err
	}
	v, err := p.valueOf(c, lit)
	if err != nil {
		return Predicate{}, err
	}
	return build(c, v), nil
}

// comparison returns the constructor that an operator stands for, nil if there is none.
func comparison(op string) func(*Column, Value) Predicate {
	switch op {
	case "=":
		return Equal
	case "<":
		return Less
	case "<=":
		return LessEqual
	case ">":
		return Greater
	case ">=":
		return GreaterEqual
	}
	return nil
}

// mirrored is the operator that says the same with its sides swapped.
func mirrored(op string) string {
	switch op {
	case "<":
		return ">"
	case "<=":
		return ">="
	case ">":
		return "<"
	case ">=":
		return "<="
	}
	return op
}

func (p *whereParser) badOperator(op token) *status.Error {
	const have = "the operators are = < <= > >= IN, IS NULL, IS NOT NULL"
	if op.kind == tokenEnd {
		return p.fault(op.pos, "want an operator, have the end: %s", have)
	}
	return p.fault(op.pos, "%v isn't an operator here: %s", op, have)
}

func (p *whereParser) column() (*Column, error) {
	name := p.tok
	if name.kind != tokenName && (name.kind != tokenWord || isKeyword(name.text)) {
		return nil, p.faultHere("want a column name, have %v", name)
	}
	i := p.schema.IndexOf(name.text)
	if i < 0 {
		return nil, p.faultHere("the table has no column %q%s", name.text, p.schema.suggest(name.text))
	}
	return &p.schema.columns[i], p.advance()
}

// suggest names the column that may have been meant.
func (s *Schema) suggest(name string) string {
	for i := range s.columns {
		if strings.EqualFold(s.columns[i].Name, name) {
			return "; " + quoteName(s.columns[i].Name) + " is one"
		}
	}
	return ""
}

// nullTest reads what follows IS.
func (p *whereParser) nullTest(c *Column) (Predicate, error) {
	build := IsNull
	if p.tok.is("not") {
		build = IsNotNull
		if err := p.advance(); err != nil {
			return Predicate{}, err
		}
	}
	if !p.tok.is("null") {
		return Predicate{}, p.faultHere("want NULL or NOT NULL after IS, have %v", p.tok)
	}
	return build(c), p.advance()
}

// inList reads what follows IN.
func (p *whereParser) inList(c *Column) (Predicate, error) {
	if !p.tok.is("(") {
		return Predicate{}, p.faultHere("want ( after IN, have %v", p.tok)
	}
	var values []Value
	for {
		if err := p.advance(); err != nil {
			return Predicate{}, err
		}
		if len(values) == 0 && p.tok.is(")") {
			return In(c), p.advance()
		}
		v, err := p.literal(c)
		if err != nil {
			return Predicate{}, err
		}
		values = append(values, v)
		if p.tok.is(")") {
			return In(c, values...), p.advance()
		}
		if !p.tok.is(",") {
			return Predicate{}, p.faultHere("want , or ) in the list, have %v", p.tok)
		}
	}
}

func (p *whereParser) atLiteral() bool {
	return p.tok.kind == tokenText || p.tok.kind == tokenNumber || p.tok.is("true") || p.tok.is("false")
}

// literal reads a literal for a column.
func (p *whereParser) literal(c *Column) (Value, error) {
	switch {
	case p.tok.is("null"):
		return Value{}, p.faultHere("nothing compares with NULL: use IS NULL or IS NOT NULL")
	case p.tok.kind == tokenName, p.tok.kind == tokenWord && !isKeyword(p.tok.text):
		return Value{}, p.faultHere("want a value, have %v: strings stand in single quotes, as in %s", p.tok, quoteText(p.tok.text))
	case !p.atLiteral():
		return Value{}, p.faultHere("want a value, have %v", p.tok)
	}
	v, err := p.valueOf(c, p.tok)
	if err != nil {
		return Value{}, err
	}
	return v, p.advance()
}

// valueOf turns a literal into a value of the column.
func (p *whereParser) valueOf(c *Column, lit token) (Value, error) {
	if lit.kind != tokenText && (c.Type == String || c.Type == Varchar) {
		return Value{}, p.fault(lit.pos, "%s takes a string in single quotes, as in %s", c.label(), quoteText(lit.text))
	}
	v, err := c.ParseText(lit.text)
	if err != nil {
		return Value{}, p.fault(lit.pos, "%v", err)
	}
	return v, nil
}
