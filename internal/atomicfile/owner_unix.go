//go:build unix

package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// KeepOwner gives files that root has made to the owner of a directory, so that a service
// that owns the directory can read them. A path may be a directory, with everything below it.
// For any other user than root, it does nothing.
func KeepOwner(dir string, paths ...string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid == 0 {
		return nil
	}
	var all []string
	for _, path := range paths {
		err := filepath.WalkDir(path, func(path string, _ fs.DirEntry, err error) error {
			all = append(all, path)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, path := range slices.Backward(all) { // files before their directories
		if err := os.Lchown(path, int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	return nil
}
