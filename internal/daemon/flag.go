package daemon

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// Tag says what may be expected of a flag. The words are Kudu's.
type Tag string

// The tags.
const (
	Stable       = Tag("stable")       // stays, with its meaning
	Evolving     = Tag("evolving")     // stays, its details may change
	Experimental = Tag("experimental") // may go
	Advanced     = Tag("advanced")     // for those who know what it does
	Hidden       = Tag("hidden")       // not in --help
	Unsafe       = Tag("unsafe")       // may cost data or its correctness; needs --unlock_unsafe_flags
	Runtime      = Tag("runtime")      // may be changed while the daemon runs
)

// Source says where a flag's value came from.
type Source string

// The sources, from the weakest to the strongest.
const (
	FromDefault     = Source("default")
	FromFile        = Source("file")
	FromEnvironment = Source("environment")
	FromCommandLine = Source("command line")
)

// FlagInfo is all that is known of one flag.
type FlagInfo struct {
	Name     string `json:"name"`
	Group    string `json:"group"`
	Type     string `json:"type"`
	Value    string `json:"value"`
	Default  string `json:"default"`
	Source   Source `json:"source"`
	Tags     []Tag  `json:"tags"`
	Help     string `json:"help"`
	Accepted string `json:"accepted,omitempty"` // "0 to 65535"; empty: anything of its type
	Required bool   `json:"required,omitempty"`
	NotKudus string `json:"not_kudus,omitempty"` // how it differs from Kudu's flag of this name, and why
}

// flag is one flag: its description, and the pflag.Value that sets the bound variable.
type flag struct {
	FlagInfo
	set      func(text string) error // parses, checks, stores
	get      func() string           // the current value as text
	min, max *int64
	oneOf    []string
	check    func(text string) error
}

var _ pflag.Value = (*flag)(nil)

// Set implements pflag.Value. It stores nothing when the value isn't accepted.
func (f *flag) Set(text string) error { return f.set(text) }

// String implements pflag.Value.
func (f *flag) String() string {
	if f.get == nil {
		return "" // pflag asks a zero value
	}
	return f.get()
}

// Type implements pflag.Value.
func (f *flag) Type() string { return f.FlagInfo.Type }

func (f *flag) hidden() bool { return slices.Contains(f.Tags, Hidden) }

// FlagOption says more about a flag.
type FlagOption func(*flag)

// Tagged gives the flag its tags; without it a flag is stable.
func Tagged(tags ...Tag) FlagOption { return func(f *flag) { f.Tags = tags } }

// AtLeast refuses numbers below min.
func AtLeast(min int64) FlagOption {
	return func(f *flag) {
		f.min = &min
		f.Accepted = fmt.Sprintf("%d or more", min)
	}
}

// Between refuses numbers outside [min, max].
func Between(min, max int64) FlagOption {
	return func(f *flag) {
		f.min, f.max = &min, &max
		f.Accepted = fmt.Sprintf("%d to %d", min, max)
	}
}

// OneOf accepts only these values.
func OneOf(values ...string) FlagOption {
	return func(f *flag) {
		f.oneOf = values
		f.Accepted = strings.Join(values, ", ")
	}
}

// Checked has a value accepted only where check returns nil; accepted says in words which those are.
func Checked(accepted string, check func(text string) error) FlagOption {
	return func(f *flag) { f.check, f.Accepted = check, accepted }
}

// NotKudus says for docs/flags.md how the flag or its default differs from Kudu's flag of this name, and why.
func NotKudus(why string) FlagOption { return func(f *flag) { f.FlagInfo.NotKudus = why } }

// Required refuses to start when the flag is given nowhere.
func Required() FlagOption { return func(f *flag) { f.FlagInfo.Required = true } }

// inRange checks a number against the options; unit is what one of the flag's numbers stands for.
func (f *flag) inRange(n float64) error {
	if f.min != nil && n < float64(*f.min) || f.max != nil && n > float64(*f.max) {
		return fmt.Errorf("out of range: want %s", f.Accepted)
	}
	return nil
}

func (f *flag) checkText(text string) error {
	if f.oneOf != nil && !slices.Contains(f.oneOf, text) {
		return fmt.Errorf("want one of %s", f.Accepted)
	}
	if f.check != nil {
		if err := f.check(text); err != nil {
			return err
		}
	}
	return nil
}

// FlagGroup declares flags that stand under one title in --help, /varz and the documentation.
type FlagGroup struct {
	flags *Flags
	title string
}

// String declares a text flag. What *p holds is the default; so it is for the others.
func (g *FlagGroup) String(p *string, name, help string, opts ...FlagOption) {
	f := g.add(name, "string", help, opts)
	f.get = func() string { return *p }
	f.set = func(text string) error {
		if err := f.checkText(text); err != nil {
			return err
		}
		*p = text
		return nil
	}
	g.flags.bind(f)
}

// Strings declares a flag that holds a list, separated by commas; in a file a YAML list may stand for it.
func (g *FlagGroup) Strings(p *[]string, name, help string, opts ...FlagOption) {
	f := g.add(name, "list", help, opts)
	f.get = func() string { return strings.Join(*p, ",") }
	f.set = func(text string) error {
		if err := f.checkText(text); err != nil {
			return err
		}
		list := []string{}
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				list = append(list, part)
			}
		}
		*p = list
		return nil
	}
	g.flags.bind(f)
}

// Bool declares a flag that is true or false; on the command line its name alone is true.
func (g *FlagGroup) Bool(p *bool, name, help string, opts ...FlagOption) {
	f := g.add(name, "bool", help, opts)
	f.get = func() string { return strconv.FormatBool(*p) }
	f.set = func(text string) error {
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("want true or false")
		}
		*p = b
		return nil
	}
	g.flags.bind(f)
}

// Int declares a flag that holds a whole number.
func (g *FlagGroup) Int(p *int, name, help string, opts ...FlagOption) {
	f := g.add(name, "int", help, opts)
	f.get = func() string { return strconv.Itoa(*p) }
	f.set = func(text string) error {
		n, err := f.whole(text)
		if err == nil {
			*p = int(n)
		}
		return err
	}
	g.flags.bind(f)
}

// Int64 is Int for a variable of 64 bits.
func (g *FlagGroup) Int64(p *int64, name, help string, opts ...FlagOption) {
	f := g.add(name, "int", help, opts)
	f.get = func() string { return strconv.FormatInt(*p, 10) }
	f.set = func(text string) error {
		n, err := f.whole(text)
		if err == nil {
			*p = n
		}
		return err
	}
	g.flags.bind(f)
}

// Float declares a flag that holds a number with a fraction.
func (g *FlagGroup) Float(p *float64, name, help string, opts ...FlagOption) {
	f := g.add(name, "float", help, opts)
	f.get = func() string { return strconv.FormatFloat(*p, 'g', -1, 64) }
	f.set = func(text string) error {
		n, err := f.number(text)
		if err == nil {
			*p = n
		}
		return err
	}
	g.flags.bind(f)
}

// Duration declares a flag whose number counts units, which the flag's name says: raft_heartbeat_interval_ms. Where the
// unit is a second or more, the number may have a fraction.
func (g *FlagGroup) Duration(p *time.Duration, unit time.Duration, name, help string, opts ...FlagOption) {
	f := g.add(name, "int", help, opts)
	parse := func(text string) (float64, error) {
		n, err := f.whole(text)
		return float64(n), err
	}
	if unit >= time.Second {
		f.FlagInfo.Type, parse = "float", f.number
	}
	f.get = func() string { return strconv.FormatFloat(float64(*p)/float64(unit), 'f', -1, 64) }
	f.set = func(text string) error {
		n, err := parse(text)
		if err != nil {
			return err
		}
		if d := n * float64(unit); math.Abs(d) >= math.MaxInt64 {
			return errors.New("out of range: longer than 292 years")
		}
		*p = time.Duration(math.Round(n * float64(unit)))
		return nil
	}
	g.flags.bind(f)
}

// Span declares a flag that holds a span of time with its unit: 90s, 1h30m, 2d, 40y.
func (g *FlagGroup) Span(p *time.Duration, name, help string, opts ...FlagOption) {
	f := g.add(name, "duration", help, opts)
	f.get = func() string { return p.String() }
	f.set = func(text string) error {
		d, err := hybridtime.ParseDuration(text)
		if err != nil {
			return errors.New("want a number with a unit, such as 1h30m, 2d or 40y")
		}
		if err := f.checkText(text); err != nil {
			return err
		}
		*p = d
		return nil
	}
	g.flags.bind(f)
}

func (g *FlagGroup) add(name, kind, help string, opts []FlagOption) *flag {
	f := &flag{FlagInfo: FlagInfo{Name: name, Group: g.title, Type: kind, Help: help, Tags: []Tag{Stable}, Source: FromDefault}}
	for _, o := range opts {
		o(f)
	}
	return f
}

// whole parses and checks a whole number.
func (f *flag) whole(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("want a whole number%s", f.acceptedSuffix())
	}
	if err := f.inRange(float64(n)); err != nil {
		return 0, err
	}
	return n, f.checkText(text)
}

// number parses and checks a number that may have a fraction.
func (f *flag) number(text string) (float64, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, fmt.Errorf("want a number%s", f.acceptedSuffix())
	}
	if err := f.inRange(n); err != nil {
		return 0, err
	}
	return n, f.checkText(text)
}

func (f *flag) acceptedSuffix() string {
	if f.Accepted == "" {
		return ""
	}
	return ", " + f.Accepted
}
