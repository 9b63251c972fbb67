//go:build !unix

package auth

import "io/fs"

// mayGroupUse reports whether a secret file is shared with a group on purpose.
func mayGroupUse(string, fs.FileInfo) bool { return false }
