package embedded

import (
	"net"
	"testing"

	"ahprelay/test/faultproxy"
)

// TestEmptyServerAsksForData asks other servers whether they have data. Servers that do not run, and a
// server that has never had a leader, must count as servers without data. A server with data, and a
// server that accepts connections and answers nothing, must count as servers that may have data.
func TestEmptyServerAsksForData(t *testing.T) {
	t.Parallel()
	servers, _ := startThree(t)
	lone := startLone(t, servers[0])
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	nobody, err := faultproxy.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	config, err := servers[0].keys.ClusterTLS()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		others []string
		want   bool
	}{
		{"no server runs", []string{nobody}, false},
		{"a server without data", []string{nobody, lone.ClusterAddr()}, false},
		{"a server with data", []string{lone.ClusterAddr(), servers[0].ClusterAddr()}, true},
		{"a silent server", []string{silent.Addr().String()}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := (&Server{others: test.others}).othersHaveData(config); got != test.want {
				t.Errorf("othersHaveData = %t; want %t", got, test.want)
			}
		})
	}
}

// startLone starts a server with the keys of a different one, in a cluster whose other server never
// starts.
func startLone(t *testing.T, other *Server) *Server {
	t.Helper()
	absent, err := faultproxy.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(Config{Keys: other.keys, Store: t.TempDir(), Cluster: Cluster{Listen: faultproxy.OwnAddress(), Routes: []string{absent}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}
