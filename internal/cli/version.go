package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/internal/daemon/buildinfo"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(a.Out, "nyala %s\n", buildinfo.Get())
			return err
		},
	}
}
