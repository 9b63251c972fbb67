package main

import (
	"regexp"
	"testing"
	"time"
)

// A terminal records a command's output.
type terminal struct{ said chan string }

func (w terminal) Write(b []byte) (int, error) {
	w.said <- string(b)
	return len(b), nil
}

// sees waits until the output matches a pattern.
func (w terminal) sees(t *testing.T, pattern string) []string {
	t.Helper()
	all, late := "", time.After(time.Minute)
	for {
		if found := regexp.MustCompile(pattern).FindStringSubmatch(all); found != nil {
			return found
		}
		select {
		case more := <-w.said:
			all += more
		case <-late:
			t.Fatalf("the command says %q; want %s", all, pattern)
		}
	}
}
