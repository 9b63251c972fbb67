package acpdoor

import "testing"

// TestModelKeepsItsWholeName chooses models. A name that begins with hostsModel must stay whole, and
// hostsModel itself must leave the choice to the host.
func TestModelKeepsItsWholeName(t *testing.T) {
	for id, want := range map[string]string{"default-fast": "default-fast", "large": "large", hostsModel: ""} {
		var o options
		if o.chooseModel(id); o.model != want || !o.unsent {
			t.Errorf("after the choice of %q, the model is %q; want %q, not sent yet", id, o.model, want)
		}
	}
}
