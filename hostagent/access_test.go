package hostagent

import (
	"errors"
	"testing"

	"ahprelay/broker"
)

// TestConnectedHostAgentAnnouncesNoLogin follows a host-agent through connections. It must announce a
// login with its requests for credentials only while it has no connection: a relay keeps a place for
// each announced login.
func TestConnectedHostAgentAnnouncesNoLogin(t *testing.T) {
	t.Parallel()
	a := &access{instance: "agent-1"}
	wants := func(when string, announces bool) {
		t.Helper()
		if got := a.login().Get(broker.InstanceHeader) != ""; got != announces {
			t.Errorf("%s, the host-agent announces a login: %t; want %t", when, got, announces)
		}
	}
	var told []string
	events := a.natsConfig(nil, "", nil, broker.Events{
		Connected:    func(string) { told = append(told, "connected") },
		Disconnected: func(error) { told = append(told, "lost") },
		Reconnected:  func(string) { told = append(told, "back") },
	}).Events
	wants("before the first connection", true)
	events.Connected("ws://one.example")
	wants("while it is connected", false)
	events.Disconnected(errors.New("cut"))
	wants("after a loss", true)
	events.Reconnected("ws://one.example")
	wants("after its return", false)
	if len(told) != 3 {
		t.Errorf("the host-agent was told %q; want three events", told)
	}
	a.natsConfig(nil, "", nil, broker.Events{})
	wants("with a new connection to make", true)
	a.elsewhere = []string{"nats://nats.example"}
	wants("with a NATS server of its own", false)
}
