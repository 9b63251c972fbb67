package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/alecthomas/kong"

	"ahprelay/internal/release"
)

type versionCmd struct {
	Check bool `help:"Also look for a newer release. The request carries no identifier." env:"-"`
}

// Run prints the program's version and, with --check, whether there is a newer
// release.
func (c *versionCmd) Run(ctx context.Context, k *kong.Context) error {
	w, program := k.Stdout, k.Model.Name
	fmt.Fprintln(w, program, BuildVersion())
	if !c.Check {
		return nil
	}
	source, err := release.Released()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	newest, err := source.Newest(ctx, program)
	if err != nil {
		return err
	}
	if newest.Newer(BuildVersion()) {
		fmt.Fprintln(w, "newer release:", newest.Version)
	} else {
		fmt.Fprintln(w, "this is the newest release")
	}
	return nil
}
