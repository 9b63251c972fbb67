//go:build unix

package atomicfile

import (
	"os"
	"syscall"
)

// KeepOwner gives files that root has made to the owner of a directory, so that a service
// that owns the directory can read them. For any other user, it does nothing. Name the files of
// a new directory before that directory.
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
	for _, path := range paths {
		if err := os.Lchown(path, int(owner.Uid), int(owner.Gid)); err != nil {
			return err
		}
	}
	return nil
}
