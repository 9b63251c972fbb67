//go:build !unix

package auth

import "io/fs"

// mayGroupUse returns false: on this system, no secret file counts as shared with a group.
func mayGroupUse(string, fs.FileInfo) bool { return false }
