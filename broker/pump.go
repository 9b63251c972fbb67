package broker

import (
	"io"
	"sync"
	"time"
)

// Buffer sizes in bytes, for each direction of a host-agent's NATS connection at a
// relay.
const (
	// PumpBuffer is the size of Pump's reads under load.
	PumpBuffer = 32 << 10

	idleBuffer = 512 // bytes of the buffer while traffic is light
)

// quietRead is the silence after which the large buffer is returned.
const quietRead = time.Second

var pumpBuffers = sync.Pool{New: func() any { return new([PumpBuffer]byte) }}

// Pump copies until either side ends, and returns the error. It uses a large
// buffer only under load.
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

// pumpMuch copies with a large buffer until from is silent or either side ends.
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

func copyOnce(to io.Writer, from io.Reader, buffer []byte) (n int, err error) {
	n, err = from.Read(buffer)
	if n > 0 {
		if _, failed := to.Write(buffer[:n]); failed != nil {
			return n, failed
		}
	}
	return n, err
}
