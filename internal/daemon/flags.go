package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/nyaladb/nyala/internal/invariant"
)

// EnvironmentPrefix stands before a flag's name in capitals.
const EnvironmentPrefix = "NYALA_"

// Flags is the registry of a program's flags.
type Flags struct {
	set    *pflag.FlagSet
	groups []string
	byName map[string]*flag
	all    []*flag // as declared

	config       string // --config
	unlockUnsafe bool   // --unlock_unsafe_flags
	warnings     []string

	mu    sync.Mutex              // held while values are read or changed once the daemon runs
	apply map[string]func() error // by flag: OnChange
}

// NewFlags returns a registry that holds --config and --unlock_unsafe_flags.
func NewFlags() *Flags {
	f := &Flags{set: pflag.NewFlagSet("", pflag.ContinueOnError), byName: map[string]*flag{}}
	f.set.SetNormalizeFunc(normalize)
	g := f.Group("Configuration")
	g.String(&f.config, "config", "YAML file with flags by name; a flag on the command line or in the environment counts more. --flagfile is another name for it, and a file of --name=value lines is read too")
	g.Bool(&f.unlockUnsafe, "unlock_unsafe_flags", "let flags that are tagged unsafe be set: they can cost data", Tagged(Advanced))
	return f
}

// normalize takes dashes for underscores, and knows Kudu's name for the config file.
func normalize(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.ReplaceAll(name, "-", "_")
	if name == "flagfile" {
		name = "config"
	}
	return pflag.NormalizedName(name)
}

// Group declares a group of flags; one of that title that exists is returned.
func (f *Flags) Group(title string) *FlagGroup {
	if !slices.Contains(f.groups, title) {
		f.groups = append(f.groups, title)
	}
	return &FlagGroup{flags: f, title: title}
}

func (f *Flags) bind(fl *flag) {
	invariant.Check(f.byName[fl.Name] == nil, "flag --%s is declared twice", fl.Name)
	invariant.Check(string(normalize(nil, fl.Name)) == fl.Name, "flag --%s: names are lower case with underscores", fl.Name)
	fl.Default = fl.get()
	f.byName[fl.Name] = fl
	f.all = append(f.all, fl)
	pf := f.set.VarPF(fl, fl.Name, "", fl.Help)
	if fl.FlagInfo.Type == "bool" {
		pf.NoOptDefVal = "true"
	}
	pf.Hidden = fl.hidden()
}

// All returns every flag with its present value, as declared, group by group.
func (f *Flags) All() []FlagInfo {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []FlagInfo
	for _, title := range f.groups {
		for _, fl := range f.all {
			if fl.Group != title {
				continue
			}
			info := fl.FlagInfo
			info.Value, info.Tags = fl.get(), slices.Clone(fl.Tags)
			out = append(out, info)
		}
	}
	return out
}

// Given returns the flags that aren't at their default by someone's word, as --name=value, in the order of All.
func (f *Flags) Given() []FlagInfo {
	return slices.DeleteFunc(f.All(), func(i FlagInfo) bool { return i.Source == FromDefault })
}

// Warnings are lines about what was read that stops nothing.
func (f *Flags) Warnings() []string { return f.warnings }

// MissingFlagsError names the required flags that were given nowhere.
type MissingFlagsError struct{ Missing []FlagInfo }

// Error names them in one line.
func (e *MissingFlagsError) Error() string {
	names := make([]string, len(e.Missing))
	for i, m := range e.Missing {
		names[i] = "--" + m.Name
	}
	return "needed and not given: " + strings.Join(names, ", ")
}

// resolve takes the values that the command line didn't give from the environment and the file, and checks what only shows
// at the end. The error joins all faults, a line each.
func (f *Flags) resolve(environ []string) error {
	for name, fl := range f.byName {
		if f.set.Changed(name) {
			fl.Source = FromCommandLine
		}
	}
	env := map[string]string{}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		// An empty variable is one that isn't set: a shell can't always unset what a parent exported.
		if strings.HasPrefix(k, EnvironmentPrefix) && v != "" {
			env[string(normalize(nil, strings.ToLower(strings.TrimPrefix(k, EnvironmentPrefix))))] = v
		}
	}
	errs := f.takeFrom(FromEnvironment, env, func(name string) string { return EnvironmentPrefix + strings.ToUpper(name) })
	for name := range env {
		if f.byName[name] == nil && name != "masters" { // the command line tool's, which may share the environment
			f.warnings = append(f.warnings, fmt.Sprintf("environment variable %s%s names no flag%s", EnvironmentPrefix, strings.ToUpper(name), f.suggestion(name)))
		}
	}
	slices.Sort(f.warnings)
	if len(errs) == 0 && f.config != "" {
		errs = append(errs, f.takeFile(f.config)...)
	}
	if len(errs) == 0 {
		errs = append(errs, f.lastChecks()...)
	}
	return errors.Join(errs...)
}

// takeFrom sets the flags that have no stronger source. values that name no flag are left to the caller.
func (f *Flags) takeFrom(src Source, values map[string]string, label func(name string) string) (errs []error) {
	for _, fl := range f.all {
		text, ok := values[fl.Name]
		if !ok || fl.Source == FromCommandLine || src == FromFile && fl.Source == FromEnvironment {
			continue
		}
		if err := fl.Set(text); err != nil {
			errs = append(errs, fmt.Errorf("%s: %q: %w", label(fl.Name), text, err))
			continue
		}
		fl.Source = src
	}
	return errs
}

func (f *Flags) lastChecks() (errs []error) {
	var missing []FlagInfo
	for _, info := range f.All() {
		if info.Required && (info.Source == FromDefault || info.Value == "") {
			missing = append(missing, info)
		}
		if slices.Contains(info.Tags, Unsafe) && info.Source != FromDefault && info.Value != info.Default && !f.unlockUnsafe {
			errs = append(errs, fmt.Errorf("--%s is unsafe: it can cost data; to set it all the same, add --unlock_unsafe_flags", info.Name))
		}
	}
	if len(missing) > 0 {
		errs = append(errs, &MissingFlagsError{Missing: missing})
	}
	return errs
}

// commandLineError turns pflag's error into one line that names the flag and what it wants.
func (f *Flags) commandLineError(err error) error {
	var (
		unknown  *pflag.NotExistError
		noValue  *pflag.ValueRequiredError
		badValue *pflag.InvalidValueError
	)
	switch {
	case errors.As(err, &badValue):
		return fmt.Errorf("--%s: %q: %w", badValue.GetFlag().Name, badValue.GetValue(), badValue.Unwrap())
	case errors.As(err, &noValue):
		return fmt.Errorf("--%s needs a value: --%[1]s=…", noValue.GetSpecifiedName())
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		name := unknown.GetSpecifiedName()
		return fmt.Errorf("unknown flag --%s%s", name, f.suggestion(name))
	}
	return err
}

// suggestion is "; did you mean --x?" where a flag's name is near enough.
func (f *Flags) suggestion(name string) string {
	name = string(normalize(nil, strings.ToLower(name)))
	best, bestDistance := "", len(name)/3+1
	for _, fl := range f.all {
		if d := distance(name, fl.Name); d < bestDistance && !fl.hidden() {
			best, bestDistance = fl.Name, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean --" + best + "?"
}

// distance is the number of characters to insert, delete or replace to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
