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

// TestClassesOfEqualAuthority compares the classes of policies. Two policies must have the same
// class only if they have equal rules: channels, methods, hidden channels and files.
func TestClassesOfEqualAuthority(t *testing.T) {
	read := func(channels ...string) gate.Policy { return gate.NewPolicy(auth.AccessRead, channels, nil, true) }
	hidden := read()
	hidden.Hidden = []string{"s:/1", "s:/2"}
	classes := map[string]string{}
	for name, p := range map[string]gate.Policy{
		"look":                       read(),
		"talk":                       gate.NewPolicy(auth.AccessTalk, nil, nil, true),
		"without reverse":            gate.NewPolicy(auth.AccessRead, nil, nil, false),
		"a channel":                  read("s:/1"),
		"a different channel":        read("s:/2"),
		"two lists":                  read("s:/1").Narrow(read("s:/2")),
		"a method":                   gate.NewPolicy(auth.AccessRead, nil, []string{"subscribe"}, true),
		"hidden channels":            hidden,
		"a file":                     read("*", "file:///a/*"),
		"a different file":           read("*", "file:///b/*"),
		"folders of sessions":        read().WithFolders(),
		"a file, and folders":        read("*", "file:///a/*").WithFolders(),
		"a different one, below two": read("*", "file:///a/*").Narrow(read("*", "file:///b/*")),
	} {
		if other, ok := classes[p.Class()]; ok {
			t.Errorf("the rule %q has the same class as %q; want different classes", name, other)
		}
		classes[p.Class()] = name
	}
	other := read()
	other.Hidden = []string{"s:/2", "s:/1"}
	file, again := read("*", "file:///a/*"), read("*", "file:///a/*")
	if other.Class() != hidden.Class() || file.Class() != again.Class() {
		t.Error("equal rules have different classes; want one class")
	}
}
