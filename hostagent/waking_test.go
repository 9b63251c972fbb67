package hostagent

import (
	"encoding/json"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/wake"
)

// TestOrderToWakeIsChecked gives a host-agent orders to wake a host. The host-agent must carry out
// an order once if a trusted relay signed it for this host-agent, and --wake-for names the host. It
// must refuse all other orders.
func TestOrderToWakeIsChecked(t *testing.T) {
	t.Parallel()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	strange, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	token, err := keys.Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: "desk", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	var sent []string
	a := &Agent{access: &access{tenant: "default", host: "desk", instance: "agent-1", token: func() (string, error) { return token, nil }}, cfg: Config{
		Log: slog.New(slog.DiscardHandler),
		Waking: Waking{For: []string{"laptop"}, Send: func(at net.HardwareAddr) error {
			sent = append(sent, at.String())
			return nil
		}},
	}}
	w := newWaker(a)
	order := func(by *auth.Keys, what auth.Statement, change func(*wake.Order)) error {
		o := wake.Order{Tenant: "default", Host: "desk", Agent: "agent-1", Target: "laptop", Addresses: []string{"02:00:5e:00:53:01"}, Subject: "ada", At: 100}
		if change != nil {
			change(&o)
		}
		body, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(by.Sign(what, body))
		if err != nil {
			t.Fatal(err)
		}
		return w.take(data)
	}
	for name, err := range map[string]error{
		"of an unknown relay":       order(strange, auth.WakeOrder, nil),
		"of a different statement":  order(keys, auth.AnswerRequest, nil),
		"for a different host":      order(keys, auth.WakeOrder, func(o *wake.Order) { o.Host = "nas" }),
		"for a different tenant":    order(keys, auth.WakeOrder, func(o *wake.Order) { o.Tenant = "other" }),
		"for an earlier host-agent": order(keys, auth.WakeOrder, func(o *wake.Order) { o.Agent = "agent-0" }),
		"for a host not named":      order(keys, auth.WakeOrder, func(o *wake.Order) { o.Target = "server" }),
		"without an address":        order(keys, auth.WakeOrder, func(o *wake.Order) { o.Addresses = nil }),
		"that is no JSON":           w.take([]byte("{")),
	} {
		if err == nil || len(sent) > 0 {
			t.Errorf("an order %s: error %v, packets for %v; want an error, and none", name, err, sent)
		}
	}
	if err := order(keys, auth.WakeOrder, nil); err != nil || strings.Join(sent, " ") != "02:00:5e:00:53:01" {
		t.Fatalf("a valid order: %v, packets for %v; want one for 02:00:5e:00:53:01", err, sent)
	}
	if err := order(keys, auth.WakeOrder, nil); err == nil {
		t.Error("a repeated order is carried out; want an error")
	}
	refused := 0
	for i := range int64(20) {
		if order(keys, auth.WakeOrder, func(o *wake.Order) { o.At += 1 + i }) != nil {
			refused++
		}
	}
	if refused < 10 {
		t.Errorf("%d of 20 orders at once were refused; want at least 10", refused)
	}
}
