package auth_test

import (
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
)

func TestRevocationNamesExactlyOneThing(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		rev auth.Revocation
		ok  bool
	}{
		"token":             {auth.Revocation{Token: "ABC", At: now}, true},
		"subject":           {auth.Revocation{Tenant: "acme", Subject: "ada@example.com", At: now}, true},
		"host":              {auth.Revocation{Tenant: "acme", Host: "laptop", At: now}, true},
		"nothing":           {auth.Revocation{Tenant: "acme", At: now}, false},
		"two":               {auth.Revocation{Tenant: "acme", Host: "laptop", Subject: "ada", At: now}, false},
		"no time":           {auth.Revocation{Token: "ABC"}, false},
		"no tenant":         {auth.Revocation{Subject: "ada", At: now}, false},
		"token of tenant":   {auth.Revocation{Token: "ABC", Tenant: "acme", At: now}, false},
		"wildcard tenant":   {auth.Revocation{Tenant: "*", Host: "laptop", At: now}, false},
		"wildcard host":     {auth.Revocation{Tenant: "acme", Host: ">", At: now}, false},
		"long token":        {auth.Revocation{Token: strings.Repeat("x", 257), At: now}, false},
		"token that forges": {auth.Revocation{Token: "a\nb", At: now}, false},
		"long subject":      {auth.Revocation{Tenant: "acme", Subject: strings.Repeat("x", 257), At: now}, false},
	} {
		if err := test.rev.Check(); (err == nil) != test.ok {
			t.Errorf("%s: Check = %v; want ok: %v", name, err, test.ok)
		}
	}
}

// TestRevocationCoversTheSameSecond revokes a subject in the middle of a second. The revocation
// must cover tokens issued in this second, because their times have no fractions.
func TestRevocationCoversTheSameSecond(t *testing.T) {
	at := time.Date(2026, 5, 1, 12, 0, 0, 500e6, time.UTC)
	subject := auth.Revocation{Tenant: "acme", Subject: "ada", At: at}
	for issued, want := range map[time.Time]bool{
		{}:                       true,
		at.Add(-time.Hour):       true,
		at.Truncate(time.Second): true,
		at.Add(time.Second / 2):  false,
		at.Add(time.Hour):        false,
	} {
		if got := subject.Covers(issued); got != want {
			t.Errorf("Covers(%v) = %v; want %v", issued, got, want)
		}
	}
	if !(auth.Revocation{Token: "x", At: at}).Covers(at.Add(time.Hour)) {
		t.Error("a token ID's revocation does not cover tokens issued later; want it to")
	}
}

// TestSecondRemovalKeepsDerivedGrants merges a subject's revocations, in both orders: an early one
// that ends derived grants, and a later one that keeps them. Grants that derive from the subject's
// tokens must end if these were issued before the early revocation, and stay if they were issued
// after it. All tokens of the subject itself must end.
func TestSecondRemovalKeepsDerivedGrants(t *testing.T) {
	first := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	second := first.Add(24 * time.Hour)
	early := auth.Revocation{Tenant: "acme", Subject: "ada", At: first}
	late := auth.Revocation{Tenant: "acme", Subject: "ada", At: second, Alone: true}
	for name, both := range map[string]auth.Revocation{
		"early first": early.Merge(late), "late first": late.Merge(early), "again": late.Merge(early).Merge(early).Merge(late),
	} {
		if both != early.Merge(late) {
			t.Errorf("%s: the result is %+v; want %+v", name, both, early.Merge(late))
		}
		for issued, derived := range map[time.Time]bool{first.Add(-time.Hour): true, first.Add(time.Hour): false, second: false} {
			if !both.Covers(issued) || both.CoversDerived(issued) != derived {
				t.Errorf("%s: a token from %v is covered: %v, and its derived grants: %v; want true, %v", name, issued, both.Covers(issued), both.CoversDerived(issued), derived)
			}
		}
	}
	if third := early.Merge(late).Merge(auth.Revocation{Tenant: "acme", Subject: "ada", At: second.Add(time.Hour)}); !third.CoversDerived(second) || third.Alone {
		t.Errorf("after a third revocation, which ends derived grants, the result is %+v; want it to end all of them", third)
	}
}
