// Package signal wakes goroutines.
package signal

// Send makes a channel of capacity 1 ready to receive. It does nothing if the channel is
// ready already.
func Send(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
