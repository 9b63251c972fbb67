package gate_test

import (
	"testing"

	"ahprelay/ahp/view"
	"ahprelay/auth"
	"ahprelay/auth/gate"
)

func TestFullPoliciesNeedNoGate(t *testing.T) {
	for _, test := range []struct {
		name   string
		policy gate.Policy
		full   bool
	}{
		{"write", gate.NewPolicy(auth.AccessWrite, nil, nil, false), true},
		{"admin", gate.NewPolicy(auth.AccessAdmin, nil, nil, false), true},
		{"write, everything named", gate.NewPolicy(auth.AccessWrite, []string{"x", "*"}, []string{"*"}, true), true},
		{"write, narrowed by full", gate.NewPolicy(auth.AccessWrite, nil, nil, false).Narrow(gate.NewPolicy(auth.AccessAdmin, nil, nil, false)), true},
		{"zero", gate.Policy{}, false},
		{"unheard of", gate.NewPolicy("root", nil, nil, false), false},
		{"read", gate.NewPolicy(auth.AccessRead, nil, nil, false), false},
		{"channels", gate.NewPolicy(auth.AccessWrite, []string{"mock:/1"}, nil, false), false},
		{"methods", gate.NewPolicy(auth.AccessAdmin, nil, []string{"ping"}, false), false},
		{"write, narrowed to read", gate.NewPolicy(auth.AccessWrite, nil, nil, false).Narrow(gate.NewPolicy(auth.AccessRead, nil, nil, false)), false},
		{"write, narrowed by nothing", gate.NewPolicy(auth.AccessWrite, nil, nil, false).Narrow(gate.Policy{}), false},
	} {
		if got := test.policy.Full(); got != test.full {
			t.Errorf("%s: Full() = %v; want %v", test.name, got, test.full)
		}
		if g := test.policy.Gate(view.NewHost(nil).Conn("")); (g == nil) != test.full {
			t.Errorf("%s: Gate() = %v; want nil: %v", test.name, g, test.full)
		}
	}
}
