// Package locked has a buffer for the logs and the output of tests.
package locked

import (
	"bytes"
	"sync"
)

// A Buffer collects text, and is safe for concurrent use. The zero value is empty.
type Buffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

// Write adds text. It does not fail.
func (b *Buffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(text)
}

// String returns all text so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}
