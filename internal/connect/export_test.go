package connect

import "os"

// WithoutFileLocks makes this system one without file locks, until restore.
func WithoutFileLocks() (restore func()) {
	was := lockFile
	lockFile = func(*os.File) (bool, error) { return false, nil }
	return func() { lockFile = was }
}

// UpPause is the pause between two looks of AwaitUp.
const UpPause = upPause
