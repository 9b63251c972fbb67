//go:build !unix

package hostagent

import "os"

// inodeOf returns false: this system has no inodes.
func inodeOf(*os.File) (uint64, bool) { return 0, false }
