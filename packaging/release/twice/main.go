// Command twice makes the release of the checked-out commit in two clean clones, in
// folders of different names and with caches of their own, and fails unless all files
// are equal. It leaves them in dist/, as `make release` does. Its arguments are those of
// command release.
package main

import (
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("twice: ", err)
	}
}

func run(args []string) error {
	dir, err := os.MkdirTemp("", "ahp-twice-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for i, arg := range args { // keys' paths become absolute
		if path, err := filepath.Abs(arg); err == nil && arg[0] != '-' && i > 0 && args[i-1] != "-only" {
			args[i] = path
		}
	}
	top, err := exec.Command("git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return err
	}
	root, made := strings.TrimSpace(string(top)), ""
	var sums [2][]byte
	for i, name := range []string{"one", "second/of/another length"} {
		clone := filepath.Join(dir, name)
		if err := command("", "git", "clone", "--quiet", "--no-hardlinks", root, clone).Run(); err != nil {
			return fmt.Errorf("clone: %w", err)
		}
		release := command(filepath.Join(clone, "packaging/release"), "go", append([]string{"run", ".", "-out", "../../dist"}, args...)...)
		release.Env = append(os.Environ(), "GOCACHE="+filepath.Join(dir, fmt.Sprint("cache", i)))
		if err := release.Run(); err != nil {
			return err
		}
		dist := filepath.Join(clone, "dist")
		made = dist
		if err := command(dist, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS").Run(); err != nil {
			return fmt.Errorf("%s: %w", dist, err)
		}
		if sums[i], err = command(dist, "sh", "-c", `find . -type f | LC_ALL=C sort | xargs -d '\n' sha256sum`).Output(); err != nil {
			return err
		}
	}
	if string(sums[0]) != string(sums[1]) {
		return errors.Join(errors.New("the two releases differ"), differences(sums))
	}
	kept := filepath.Join(root, "dist")
	if err := errors.Join(os.RemoveAll(kept), os.CopyFS(kept, os.DirFS(made))); err != nil {
		return err
	}
	fmt.Printf("%s\nboth releases are equal; one is in %s\n", sums[0], kept)
	return nil
}

// command returns a command whose output goes to standard error.
func command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	return cmd
}

// differences lists the lines that only one of the releases has.
func differences(sums [2][]byte) error {
	count := map[string]int{}
	for _, sum := range sums {
		for line := range strings.Lines(string(sum)) {
			count[line]++
		}
	}
	var list []error
	for _, line := range slices.Sorted(maps.Keys(count)) {
		if count[line] == 1 {
			list = append(list, errors.New(strings.TrimSpace(line)))
		}
	}
	return errors.Join(list...)
}
