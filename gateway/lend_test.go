package gateway

import "testing"

// TestLentCreditIsBounded lends credit until the budget refuses a request. From then
// on, lend(0) returns false, by which all clients learn about the refusal. It returns
// true when credit was given back and a request was granted.
func TestLentCreditIsBounded(t *testing.T) {
	b := newBudget(mib, mib)
	const step = 64 << 10
	lent := 0
	for b.lend(step) {
		lent += step
	}
	if lent != mib/lentShare || b.lent.Load() != int64(lent) {
		t.Errorf("%d bytes of credit are lent, and %d are counted as lent; want %d", lent, b.lent.Load(), mib/lentShare)
	}
	if b.lend(0) {
		t.Error("lend(0) succeeds after a refused request; want false")
	}
	b.lend(-step)
	if !b.lend(step) || !b.lend(0) {
		t.Error("credit that was returned cannot be lent; want it lent")
	}
	b.lend(-lent)
	b.add(mib) // memory is short
	if b.lend(1) {
		t.Error("credit is lent while memory is short; want a refusal")
	}
}
