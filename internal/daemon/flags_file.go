package daemon

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/viper"
)

// maxConfigFile bounds what is read as a config file: a path that names a device or a data file must not be.
const maxConfigFile = 1 << 20

// takeFile sets flags from a config file. Every key must name a flag.
func (f *Flags) takeFile(path string) []error {
	info, err := os.Stat(path)
	if err != nil {
		return []error{fmt.Errorf("--config: %w", err)}
	}
	if !info.Mode().IsRegular() || info.Size() > maxConfigFile {
		return []error{fmt.Errorf("--config: %s: want a file of at most %d bytes", path, maxConfigFile)}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("--config: %w", err)}
	}
	parse := parseYAML
	if isFlagfile(text) {
		parse = parseFlagfile
	}
	raw, err := parse(text)
	if err != nil {
		return []error{fmt.Errorf("%s: %w", path, err)}
	}
	var errs []error
	values := map[string]string{}
	for _, kv := range raw {
		name := string(normalize(nil, kv.key))
		_, twice := values[name]
		switch {
		case f.byName[name] == nil:
			errs = append(errs, fmt.Errorf("%s: unknown key %s%s", path, kv.key, f.suggestion(name)))
		case name == "config":
			errs = append(errs, fmt.Errorf("%s: %s can't stand in a config file", path, kv.key))
		case twice:
			errs = append(errs, fmt.Errorf("%s: %s is given twice", path, kv.key))
		case kv.fault != "":
			errs = append(errs, fmt.Errorf("%s: %s: %s", path, kv.key, kv.fault))
		default:
			values[name] = kv.text
		}
	}
	return append(errs, f.takeFrom(FromFile, values, func(name string) string { return path + ": " + name })...)
}

// entry is one key of a file with its value as text, or why it has none.
type entry struct{ key, text, fault string }

// parseYAML reads a map of scalars and lists of scalars.
func parseYAML(text []byte) ([]entry, error) {
	// A delimiter that no key contains keeps viper from reading a.b as b within a.
	v := viper.NewWithOptions(viper.KeyDelimiter("\x00"), viper.WithDecoderRegistry(keepEmpty{viper.NewCodecRegistry()}))
	v.SetConfigType("yaml")
	if err := v.ReadConfig(bytes.NewReader(text)); err != nil {
		var parse viper.ConfigParseError
		if errors.As(err, &parse) {
			err = parse.Unwrap()
		}
		return nil, fmt.Errorf("not a YAML map of flags: %s", strings.ReplaceAll(err.Error(), "\n", " "))
	}
	var out []entry
	for key, value := range v.AllSettings() {
		e := entry{key: key}
		e.text, e.fault = scalarText(value)
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b entry) int { return strings.Compare(a.key, b.key) })
	return out, nil
}

// noValue stands for a key of a file that has no value.
type noValue struct{}

// keepEmpty has viper see keys without a value, which it would pass over in silence, unknown ones too.
type keepEmpty struct{ viper.DecoderRegistry }

func (k keepEmpty) Decoder(format string) (viper.Decoder, error) {
	d, err := k.DecoderRegistry.Decoder(format)
	return emptyKeeper{d}, err
}

type emptyKeeper struct{ viper.Decoder }

func (k emptyKeeper) Decode(text []byte, into map[string]any) error {
	err := k.Decoder.Decode(text, into)
	for key, value := range into {
		if value == nil {
			into[key] = noValue{}
		}
	}
	return err
}

func scalarText(value any) (text, fault string) {
	switch value := value.(type) {
	case nil, noValue:
		return "", `has no value; for an empty text write ""`
	case map[string]any:
		return "", "has keys below it: flags are not nested"
	case []any:
		parts := make([]string, len(value))
		for i, v := range value {
			part, fault := scalarText(v)
			if _, nested := v.([]any); fault != "" || nested {
				return "", "want a list of plain values"
			}
			parts[i] = part
		}
		return strings.Join(parts, ","), ""
	default:
		return fmt.Sprint(value), ""
	}
}

// isFlagfile says whether a file is one of gflags: its first line that says anything begins with a flag.
func isFlagfile(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		return bytes.HasPrefix(line, []byte("--")) && !bytes.HasPrefix(line, []byte("---"))
	}
	return false
}

// parseFlagfile reads lines of --name=value, or --name for true.
func parseFlagfile(text []byte) ([]entry, error) {
	var out []entry
	sc := bufio.NewScanner(bytes.NewReader(text))
	sc.Buffer(nil, maxConfigFile+1)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, isFlag := strings.CutPrefix(line, "--")
		if !isFlag || name == "" {
			return nil, fmt.Errorf("line %d: want --name=value", n)
		}
		name, value, given := strings.Cut(name, "=")
		if !given {
			value = "true"
		}
		out = append(out, entry{key: name, text: value})
	}
	return out, sc.Err()
}
