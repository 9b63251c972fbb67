package auth_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"ahprelay/auth"
)

// TestOnlySameKeysJoinTheCluster connects relays over TLS. The handshake must succeed only if both
// have the same keys.
func TestOnlySameKeysJoinTheCluster(t *testing.T) {
	dir := t.TempDir()
	one, copied := load(t, dir), load(t, dir)
	strange, _ := newKeys(t)
	config := func(k *auth.Keys) *tls.Config {
		c, err := k.ClusterTLS()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if a, b := config(one), config(copied); !bytes.Equal(a.Certificates[0].Certificate[0], b.Certificates[0].Certificate[0]) {
		t.Error("the same keys make different certificates; want the same")
	}
	without := config(one)
	without.Certificates, without.GetClientCertificate = nil, nil
	for _, test := range []struct {
		name           string
		server, client *tls.Config
		ok             bool
	}{
		{"same keys", config(one), config(copied), true},
		{"other keys", config(one), config(strange), false},
		{"the other way round", config(strange), config(one), false},
		{"no certificate", config(one), without, false},
		// This client accepts any server; the server must refuse the client.
		{"other keys, careless", config(one), careless(config(strange)), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := handshake(test.server, test.client); (err == nil) != test.ok {
				t.Errorf("handshake: %v; want success %v", err, test.ok)
			}
		})
	}
}

func careless(c *tls.Config) *tls.Config {
	c.VerifyConnection = nil
	return c
}

// handshake connects a client to a server in memory. It returns an error unless the client can read
// a byte.
func handshake(server, client *tls.Config) error {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	deadline := time.Now().Add(time.Minute)
	_, _ = a.SetDeadline(deadline), b.SetDeadline(deadline)
	served := make(chan error, 1)
	go func() {
		s := tls.Server(a, server)
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		_ = a.Close()
		served <- err
	}()
	c := tls.Client(b, client)
	_, err := c.Read(make([]byte, 1))
	_ = b.Close()
	return errors.Join(err, <-served)
}
