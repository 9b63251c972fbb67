// Package eavesdrop records what a sealed host's relay, its NATS server and their operator
// can see, and searches it for pieces of messages.
package eavesdrop

import (
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// A Recording collects what several writers write.
type Recording struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (r *Recording) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.Write(p)
}

// Bytes returns a copy of all bytes so far.
func (r *Recording) Bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.b.Bytes())
}

// RecordTCP forwards TCP connections to target, and writes their bytes in both
// directions to kept. It returns the address that clients must use.
func RecordTCP(t testing.TB, target string, kept io.Writer) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", target)
			if err != nil {
				_ = from.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{from, to}, {to, from}} {
				running.Go(func() {
					defer pair[1].Close()
					_, _ = io.Copy(io.MultiWriter(pair[1], kept), pair[0])
				})
			}
		}
	})
	return l.Addr().String()
}

// SecretsOf returns every text with at least 16 bytes in JSON messages.
func SecretsOf(messages [][]byte) (list []string) {
	var add func(value any)
	add = func(value any) {
		switch value := value.(type) {
		case string:
			if len(value) >= 16 {
				list = append(list, value)
			}
		case []any:
			for _, one := range value {
				add(one)
			}
		case map[string]any:
			for name, one := range value {
				add(name)
				add(one)
			}
		}
	}
	for _, m := range messages {
		var value any
		if json.Unmarshal(m, &value) == nil {
			add(value)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Found returns each secret of which some 16 successive bytes occur in the recorded
// bytes.
func Found(in []byte, secrets []string) (list []string) {
	pieces := map[[16]byte]bool{}
	for i := range len(in) - 15 {
		pieces[[16]byte(in[i:])] = true
	}
	for _, secret := range secrets {
		for i := range len(secret) - 15 {
			if pieces[[16]byte([]byte(secret[i:]))] {
				list = append(list, secret)
				break
			}
		}
	}
	return list
}

// FilesIn returns the content of all files in a directory, joined.
func FilesIn(t testing.TB, dir string) (all []byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // the file was removed meanwhile
		}
		data, err := os.ReadFile(path)
		if err == nil {
			all = append(all, data...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
