package connect

import (
	"errors"
	"time"

	"github.com/zalando/go-keyring"
)

// keyService is the name of ahp-connect's entries in the key store.
const keyService = "ahp-connect"

// keyWait bounds the wait while the key store asks the person to unlock it.
const keyWait = 30 * time.Second

// SystemKeys is the system's key store: the keychain of macOS, the credential manager
// of Windows, and the Secret Service of Linux desktops.
type SystemKeys struct{}

var _ KeyStore = SystemKeys{}

var errKeysSilent = errors.New("the key store does not answer")

// within bounds the time of a call to the key store. If the call never returns, its
// goroutine remains.
func within[T any](call func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := call()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-time.After(keyWait):
		var none T
		return none, errKeysSilent
	}
}

// Set implements [KeyStore].
func (SystemKeys) Set(name, secret string) error {
	_, err := within(func() (struct{}, error) { return struct{}{}, keyring.Set(keyService, name, secret) })
	return err
}

// Get implements [KeyStore].
func (SystemKeys) Get(name string) (string, error) {
	return within(func() (string, error) { return keyring.Get(keyService, name) })
}

// Delete implements [KeyStore].
func (SystemKeys) Delete(name string) error {
	_, err := within(func() (struct{}, error) { return struct{}{}, keyring.Delete(keyService, name) })
	return err
}
