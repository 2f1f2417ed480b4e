package daemon

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/replica"
)

// roleFlags are the flags that configs/ sets and the roles declare; this package doesn't know them.
var roleFlags = []string{"tserver_master_addrs"}

// TestConfigs shows that the files in configs/ hold every common flag, commented out at its default, and no key that is no
// flag.
func TestConfigs(t *testing.T) {
	commented := regexp.MustCompile(`(?m)^# ([a-z0-9_]+): (.*)$`)
	for name, d := range map[string]Defaults{"master": MasterDefaults, "tserver": TabletServerDefaults} {
		path := filepath.Join("..", "..", "configs", name+".yaml")
		text, err := os.ReadFile(path)
		require.NoError(t, err)

		c := DefaultCommon(d)
		f := NewFlags()
		c.Register(f)
		node := replica.DefaultNodeConfig()
		c.RegisterStorage(f, &node)
		for _, r := range roleFlags {
			f.Group("Role").String(new(string), r, "of the role")
		}
		f.config = path
		require.NoError(t, f.resolve(nil))
		require.NoError(t, c.Validate())

		inFile := map[string]string{}
		for _, m := range commented.FindAllStringSubmatch(string(text), -1) {
			inFile[m[1]] = m[2]
		}
		for _, info := range f.All() {
			if info.Group == "Role" {
				continue
			}
			value, isCommented := inFile[info.Name]
			switch {
			case info.Group == "Configuration" || info.Source == FromFile || slices.Contains(info.Tags, Hidden):
				require.False(t, isCommented, info.Name)
			case info.Name == "webserver_advertised_addresses":
				require.True(t, strings.HasSuffix(value, ":"+strconv.Itoa(d.WebPort)), value)
			case info.Name == "rpc_advertised_addresses":
				require.True(t, strings.HasSuffix(value, c.RPCBindAddresses[0][strings.LastIndex(c.RPCBindAddresses[0], ":"):]), value)
			default:
				require.True(t, isCommented, "%s has no %s", path, info.Name)
				require.Equal(t, info.Default, value, "%s: %s", path, info.Name)
			}
		}
	}
}
