package ahp_test

import (
	"maps"
	"regexp"
	"slices"
	"testing"

	"ahprelay/ahp"
)

var (
	levels  = []ahp.Level{ahp.Look, ahp.Talk, ahp.Approve, ahp.Operate, ahp.Own}
	version = regexp.MustCompile(`^(0\.9|0\.10|1\.\d+|extension)$`)
)

// TestMethodRowsAreComplete fails unless each client's method in the tables has valid values in all
// fields, which agree with each other.
func TestMethodRowsAreComplete(t *testing.T) {
	for _, table := range []map[string]ahp.Method{ahp.ClientMethods, ahp.MCPMethods} {
		for name, m := range table {
			switch {
			case m.Kind != ahp.Request && m.Kind != ahp.Notification:
				t.Errorf("the method %s has the kind %v; want Request or Notification", name, m.Kind)
			case !slices.Contains(levels, m.Level):
				t.Errorf("the method %s has the level %q; want a known level", name, m.Level)
			case (m.Result != nil) != (m.Kind == ahp.Request):
				t.Errorf("%s: a %v has a result shape: %t; want one exactly for a request", name, m.Kind, m.Result != nil)
			case m.Class != ahp.Ordinary && m.Level != ahp.Look:
				t.Errorf("%s: needs the level %s; want look, because every connection uses it", name, m.Level)
			case m.Shared && (m.Kind != ahp.Request || m.Level != ahp.Look || m.Class != ahp.Ordinary):
				t.Errorf("%s: an audience shares it; want a request at the level look", name)
			case m.Audit != "" && m.Kind != ahp.Request:
				t.Errorf("%s: a notification has an audit word; want none", name)
			case !version.MatchString(m.Since):
				t.Errorf("%s: the first version is %q; want one such as 0.9.0", name, m.Since)
			}
		}
	}
}

// TestHostMethodRowsAreComplete fails unless each host's method in the table has valid values in
// all fields, which agree with each other.
func TestHostMethodRowsAreComplete(t *testing.T) {
	for name, m := range ahp.HostMethods {
		switch {
		case m.Kind != ahp.Request && m.Kind != ahp.Notification:
			t.Errorf("the host's method %s has the kind %v; want Request or Notification", name, m.Kind)
		case (m.Params != nil) != (m.Kind == ahp.Notification):
			t.Errorf("%s: a %v has a params shape: %t; want one exactly for a notification", name, m.Kind, m.Params != nil)
		case (m.Answer != ahp.NoAnswer) != (m.Kind == ahp.Request):
			t.Errorf("%s: a %v has the answer rule %v; want one exactly for a request", name, m.Kind, m.Answer)
		case !version.MatchString(m.Since):
			t.Errorf("%s: the first version is %q; want one such as 0.9.0", name, m.Since)
		}
	}
}

// TestActionRowsAreComplete fails unless each action below the level operate lists its members,
// among them its message.
func TestActionRowsAreComplete(t *testing.T) {
	for name, a := range ahp.Actions {
		switch {
		case !slices.Contains(levels, a.Level) || a.Level == ahp.Look:
			t.Errorf("the action %s has the level %q; want a known level above look", name, a.Level)
		case (a.Members != nil) != (a.Level == ahp.Talk || a.Level == ahp.Approve):
			t.Errorf("%s: an action at the level %s has the members %q; want members exactly at talk and approve", name, a.Level, a.Members)
		case a.Message != "" && !slices.Contains(a.Members, a.Message):
			t.Errorf("%s: the message %q is not among the members %q; want it there", name, a.Message, a.Members)
		}
	}
}

// TestAudienceSharesOnlyTheseMethods repeats which methods viewers share, because a mistake in the
// table would show a viewer's answer to all.
func TestAudienceSharesOnlyTheseMethods(t *testing.T) {
	shared := func(table map[string]ahp.Method) (names []string) {
		for _, name := range slices.Sorted(maps.Keys(table)) {
			if table[name].Shared {
				names = append(names, name)
			}
		}
		return names
	}
	want := []string{"canvasReadResource", "fetchAutomationRuns", "fetchTurns", "listAutomationTriggerDefinitions", "listSessions", "resourceList", "resourceRead", "resourceResolve"}
	if got := shared(ahp.ClientMethods); !slices.Equal(got, want) {
		t.Errorf("ClientMethods: %q; want %q", got, want)
	}
	want = []string{"ping", "prompts/get", "prompts/list", "resources/list", "resources/read", "resources/templates/list", "tools/list"}
	if got := shared(ahp.MCPMethods); !slices.Equal(got, want) {
		t.Errorf("MCPMethods: %q; want %q", got, want)
	}
}
