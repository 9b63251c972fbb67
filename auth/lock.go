package auth

import (
	"os"
	"time"
)

// lockWait bounds the wait of [AwaitLock].
const lockWait = 5 * time.Second

// AwaitLock locks a file like [LockFile], and waits up to 5 s for a different process to
// release it. A child process that a killed process had just started may keep a lock for a
// moment. The error is that of the last attempt.
func AwaitLock(f *os.File) error {
	for deadline := time.Now().Add(lockWait); ; time.Sleep(5 * time.Millisecond) {
		_, err := LockFile(f)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
