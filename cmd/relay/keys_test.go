package main

import (
	"bytes"
	"strings"
	"testing"

	"ahprelay/auth"
)

// TestCommandsRollTheKeys replaces the keys in a data directory by the commands, with
// the ids that the commands print.
func TestCommandsRollTheKeys(t *testing.T) {
	dir := t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	do := func(ok bool, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if err := run(t.Context(), append(append([]string{"keys"}, args...), "--data-dir", dir), &out, &out); (err == nil) != ok {
			t.Fatalf("relay keys %v: %v; want success %v", args, err, ok)
		}
		return out.String()
	}
	rows := func() (ids []string, table string) {
		table = do(true, "list")
		for line := range strings.Lines(table) {
			ids = append(ids, strings.Fields(line)[0])
		}
		return ids[1:], table
	}
	ids, _ := rows()
	do(false, "retire", ids[0])
	added, _, _ := strings.Cut(do(true, "add", "--sign-after", "0s"), "\n")
	ids, table := rows()
	if len(ids) != 2 || ids[1] != added || !strings.HasSuffix(strings.TrimSpace(table), "signs") {
		t.Fatalf("after keys add, the keys must be the old and the new set, and the new one signs:\n%s", table)
	}
	do(false, "retire", ids[0]) // refused, because the new keys have just begun to sign
	do(true, "retire", "--force", ids[0])
	if ids, table := rows(); len(ids) != 1 || ids[0] != added {
		t.Fatalf("after keys retire, the keys must be the new set only:\n%s", table)
	}
	do(false, "retire", "--force", added)
}
