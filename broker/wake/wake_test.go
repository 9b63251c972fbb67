package wake_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"ahprelay/broker/wake"
)

// TestTermsNeedBothOwners calls Allows, Wakes and Check with lists of names and addresses. Only
// listed names may be allowed, and invalid lists must be refused.
func TestTermsNeedBothOwners(t *testing.T) {
	t.Parallel()
	terms := wake.Terms{By: "desk,nas", Addresses: "02:00:00:00:00:01", For: "laptop"}
	if err := terms.Check(); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]bool{
		"desk may wake it": terms.Allows("desk"), "nas may wake it": terms.Allows("nas"), "it wakes laptop": terms.Wakes("laptop"),
		"esk may not wake it": !terms.Allows("esk"), "the empty name may not": !terms.Allows(""), "it does not wake desk": !terms.Wakes("desk"),
		"no terms allow nothing": !wake.Terms{}.Allows(""), "without addresses there is nothing to wake": !wake.Terms{By: "desk"}.Allows("desk"),
	} {
		if !got {
			t.Errorf("false: %s", name)
		}
	}
	for _, bad := range []wake.Terms{
		{By: "a b"}, {By: "desk,"}, {For: strings.Repeat("x,", wake.MostNames) + "x"}, {Addresses: "02:00:00:00:00"},
		{Addresses: strings.TrimSuffix(strings.Repeat("02:00:00:00:00:01,", wake.MostAddresses+1), ",")}, {Addresses: "02:00:5e:10:00:00:00:01"},
	} {
		if bad.Check() == nil {
			t.Errorf("Check accepts %+v; want an error", bad)
		}
	}
}

// FuzzReadOrder reads arbitrary orders, as a hostile server could send. An accepted order must have
// a target, a time and a bounded number of addresses.
func FuzzReadOrder(f *testing.F) {
	good, err := json.Marshal(wake.Order{Tenant: "default", Host: "desk", Agent: "a", Target: "laptop", Addresses: []string{"02:00:00:00:00:01"}, At: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"target":"laptop","addresses":["x"],"at":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		before := slices.Clone(body)
		o, err := wake.ReadOrder(body)
		if err == nil && (o.Target == "" || len(o.Addresses) == 0 || len(o.Addresses) > wake.MostAddresses || o.At <= 0) {
			t.Errorf("ReadOrder accepts the order %+v; want a target, 1 to MostAddresses addresses, and a time", o)
		}
		if !slices.Equal(before, body) {
			t.Error("ReadOrder has changed the body; want it as it was")
		}
	})
}
