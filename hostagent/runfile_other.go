//go:build !unix

package hostagent

import "os"

// inodeOf knows nothing of files here.
func inodeOf(*os.File) (uint64, bool) { return 0, false }
