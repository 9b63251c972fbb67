package broker

import (
	"io"
	"sync"
	"time"
)

// Buffers of one direction of a host-agent's connection to NATS at a relay, in bytes.
const (
	// PumpBuffer is how much Pump reads at a time.
	PumpBuffer = 32 << 10

	idleBuffer = 512 // while little comes
)

// quietRead is how long nothing must have come for the large buffer to be given back.
const quietRead = time.Second

var pumpBuffers = sync.Pool{New: func() any { return new([PumpBuffer]byte) }}

// Pump copies from one side to the other until one of them ends, and says why. It has a large
// buffer only while there is much to copy.
func Pump(to io.Writer, from io.Reader) error {
	little := make([]byte, idleBuffer)
	for {
		n, err := copyOnce(to, from, little)
		if err == nil && n == len(little) {
			err = pumpMuch(to, from)
		}
		if err != nil {
			return err
		}
	}
}

// pumpMuch copies until nothing has come for a while, or one side ends.
func pumpMuch(to io.Writer, from io.Reader) error {
	buffer := pumpBuffers.Get().(*[PumpBuffer]byte)
	defer pumpBuffers.Put(buffer)
	for {
		began := time.Now()
		n, err := copyOnce(to, from, buffer[:])
		if err != nil || n < idleBuffer && time.Since(began) > quietRead {
			return err
		}
	}
}

// copyOnce copies what one read brings.
func copyOnce(to io.Writer, from io.Reader, buffer []byte) (n int, err error) {
	n, err = from.Read(buffer)
	if n > 0 {
		if _, failed := to.Write(buffer[:n]); failed != nil {
			return n, failed
		}
	}
	return n, err
}
