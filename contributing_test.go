package ahprelay

import (
	"os"
	"strings"
	"testing"
)

// TestContributingAnswersNewcomers holds CONTRIBUTING.md to the code: it names the
// file for each of its tasks, and the file has the declaration in question.
func TestContributingAnswersNewcomers(t *testing.T) {
	guide, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range []struct{ file, declares string }{
		{"ahp/table.go", "var Actions = "},
		{"ahp/table.go", "var ClientMethods = "},
		{"auth/gate/actions.go", "ahp.Actions"},
		{"auth/gate/testdata/matrix.txt", "c req  subscribe"},
		{"gateway/notify/target.go", "type service interface {"},
		{"gateway/notify/target.go", "func services("},
		{"gateway/notify/ntfy.go", "send("},
		{"gateway/relief.go", "func (r *relief) overload("},
		{"gateway/outbox.go", "type outbox struct"},
		{"broker/link/link.go", "const DefaultResume = "},
	} {
		if !strings.Contains(string(guide), "`"+task.file+"`") {
			t.Errorf("CONTRIBUTING.md does not name %s", task.file)
		}
		text, err := os.ReadFile(task.file)
		if err != nil {
			t.Errorf("CONTRIBUTING.md names the file %s, which cannot be read: %v", task.file, err)
		} else if !strings.Contains(string(text), task.declares) {
			t.Errorf("%s lacks %q; correct the answer in CONTRIBUTING.md", task.file, task.declares)
		}
	}
}
