//go:build unix

package auth

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// mayGroupUse reports whether a secret file is shared with a group on purpose, as
// Kubernetes does with volumes (fsGroup). The process must be in that group, and all
// others must have no access. A file with this process's own user and primary group does
// not count. Others must not be able to replace files in the directory, which must belong
// to this user or root.
func mayGroupUse(path string, info fs.FileInfo) bool {
	file, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	dir, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return false
	}
	owner, ok := dir.Sys().(*syscall.Stat_t)
	groups, err := os.Getgroups()
	if !ok || err != nil {
		return false
	}
	return givenToGroup(info.Mode(), file.Uid, file.Gid, os.Geteuid(), os.Getegid(), groups) &&
		safeDirectory(dir.Mode(), owner.Uid, os.Geteuid())
}

func givenToGroup(mode fs.FileMode, uid, gid uint32, euid, egid int, groups []int) bool {
	own := int(uid) == euid && int(gid) == egid
	return mode.Perm()&0o007 == 0 && !own && (int(gid) == egid || slices.Contains(groups, int(gid)))
}

func safeDirectory(mode fs.FileMode, uid uint32, euid int) bool {
	return (int(uid) == euid || uid == 0) && (mode.Perm()&0o002 == 0 || mode&fs.ModeSticky != 0)
}
