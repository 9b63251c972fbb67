package load

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/test/faultproxy"
	"ahprelay/test/hostrecord"
)

// TestOthersWriteDuringFinish lets clients outside a crowd change the draft after the
// crowd's last snapshot. The viewers receive these actions, too, because the network
// delays them. The crowd must not report this as a fault.
func TestOthersWriteDuringFinish(t *testing.T) {
	t.Parallel()
	record := filepath.Join(t.TempDir(), "record")
	file, err := os.Create(record)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	host, err := scripted.New(agenthost.Config{Recorder: hostrecord.To(file)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(host)
	defer server.Close()
	defer func() { _ = host.Close() }()
	address := strings.TrimPrefix(server.URL, "http://")
	way, err := faultproxy.New("", address)
	if err != nil {
		t.Fatal(err)
	}
	defer way.Close()
	way.Shape(faultproxy.Shape{Delay: sendEvery})
	near := Target{URL: "ws://" + address}
	c := Gather(near, Target{URL: "ws://" + way.Addr()}, 2)
	defer c.Close()
	for i := range 3 {
		defer Watch(fmt.Sprintf("other-%d", i+1), near).Close()
	}
	if err := c.AwaitWhole(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * sendEvery) // the clients outside the crowd write
	report, err := c.Finish(t.Context(), []string{record})
	if err != nil || report.Lost+report.Repeated+len(report.Faults) != 0 {
		t.Fatalf("%+v, %v; want no fault", report, err)
	}
}
