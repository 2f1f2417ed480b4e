package schema

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nyaladb/nyala/internal/status"
)

// The lexer of where clauses, column specs and ranges.

type tokenKind uint8

const (
	tokenEnd     tokenKind = iota
	tokenWord              // an unquoted identifier, a keyword, true, false
	tokenName              // an identifier in double quotes
	tokenText              // a string in single quotes
	tokenNumber            // digits, a sign, a point, an exponent; 0x and hexadecimal digits
	tokenSymbol            // = < <= > >= <> != ( ) [ ] , :
	tokenUnknown           // any other character
)

type token struct {
	kind tokenKind
	// text is what stands between the quotes, escapes undone; for the other kinds the source itself.
	text string
	pos  int
}

// is says whether the token is the symbol or the keyword (in any case).
func (t token) is(s string) bool {
	switch t.kind {
	case tokenSymbol:
		return t.text == s
	case tokenWord:
		return strings.EqualFold(t.text, s)
	default:
		return false
	}
}

func (t token) String() string {
	switch t.kind {
	case tokenEnd:
		return "the end"
	case tokenText:
		return quoteText(t.text)
	case tokenName:
		return quoteName(t.text)
	default:
		return fmt.Sprintf("%q", t.text)
	}
}

// lexer reads tokens off a source. What names the source in errors: "where clause".
type lexer struct {
	what   string
	source string
	pos    int
}

// fault is an error at a place in the source, by its character counted from 1.
func (l *lexer) fault(pos int, format string, args ...any) *status.Error {
	character := utf8.RuneCountInString(l.source[:pos]) + 1
	return status.New(status.InvalidArgument, "%s, character %d: %s", l.what, character, fmt.Sprintf(format, args...))
}

func (l *lexer) next() (token, error) {
	for l.pos < len(l.source) {
		r, size := utf8.DecodeRuneInString(l.source[l.pos:])
		if !unicode.IsSpace(r) {
			break
		}
		l.pos += size
	}
	start := l.pos
	if start == len(l.source) {
		return token{kind: tokenEnd, pos: start}, nil
	}
	rest := l.source[start:]
	r, size := utf8.DecodeRuneInString(rest)
	switch {
	case r == '\'':
		return l.quoted(tokenText, '\'', "string")
	case r == '"':
		return l.quoted(tokenName, '"', "name")
	case wordStart(r):
		return l.take(tokenWord, len(rest)-len(strings.TrimLeftFunc(rest, wordPart))), nil
	case r >= '0' && r <= '9' || (r == '-' || r == '+' || r == '.') && len(rest) > 1 && (rest[1] >= '0' && rest[1] <= '9' || rest[1] == '.'):
		return l.take(tokenNumber, numberLen(rest)), nil
	}
	for _, s := range []string{"<=", ">=", "<>", "!=", "=", "<", ">", "(", ")", "[", "]", ",", ":"} {
		if strings.HasPrefix(rest, s) {
			return l.take(tokenSymbol, len(s)), nil
		}
	}
	return l.take(tokenUnknown, size), nil
}

func (l *lexer) take(kind tokenKind, n int) token {
	t := token{kind: kind, text: l.source[l.pos : l.pos+n], pos: l.pos}
	l.pos += n
	return t
}

// quoted reads up to the closing quote; a quote within is written twice.
func (l *lexer) quoted(kind tokenKind, quote byte, what string) (token, error) {
	start := l.pos
	var text strings.Builder
	for pos := start + 1; ; {
		i := strings.IndexByte(l.source[pos:], quote)
		if i < 0 {
			return token{}, l.fault(start, "the %s that starts here has no closing %c", what, quote)
		}
		text.WriteString(l.source[pos : pos+i])
		pos += i + 1
		if pos < len(l.source) && l.source[pos] == quote {
			text.WriteByte(quote)
			pos++
			continue
		}
		l.pos = pos
		return token{kind: kind, text: text.String(), pos: start}, nil
	}
}

func wordStart(r rune) bool { return r == '_' || unicode.IsLetter(r) && r != utf8.RuneError }

func wordPart(r rune) bool { return wordStart(r) || unicode.IsDigit(r) || r == '$' }

// numberLen is the length of what looks like a number: letters and digits are taken along, so that 12abc is one bad number and
// not a number and a word.
func numberLen(s string) int {
	n := 0
	for ; n < len(s); n++ {
		switch c := s[n]; {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '.', c == '_':
		case (c == '-' || c == '+') && (n == 0 || s[n-1] == 'e' || s[n-1] == 'E'):
		default:
			return n
		}
	}
	return n
}

// quoteText and quoteName write a string and a name as the lexer reads them.
func quoteText(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func quoteName(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// quoteIdentifier quotes a name only if the lexer wouldn't read it as one word otherwise, or as a keyword.
func quoteIdentifier(name string) string {
	for i, r := range name {
		if i == 0 && !wordStart(r) || !wordPart(r) {
			return quoteName(name)
		}
	}
	if name == "" || isKeyword(name) {
		return quoteName(name)
	}
	return name
}

func isKeyword(word string) bool {
	switch strings.ToLower(word) {
	case "and", "or", "not", "in", "is", "null", "between", "like", "true", "false":
		return true
	}
	return false
}
