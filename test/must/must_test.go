package must

import (
	"errors"
	"testing"
)

// TestFailedStepEndsTheRest fails in a step, in one of two at once, and not at all.
func TestFailedStepEndsTheRest(t *testing.T) {
	broken := errors.New("broken")
	for want, f := range map[string]func(){
		"a step: broken": func() { Within("a step", func() { Do(broken) }) },
		"7 are left":     func() { Fail("%d are left", 7) },
		"broken":         func() { Both(func() {}, func() { Get(1, broken) }) },
		"":               func() { Both(func() { Do(nil) }, func() { Get(1, nil) }) },
	} {
		ended := true
		err := Catch(func() {
			f()
			ended = false
		})
		if got := errors.Join(err); want == "" != (got == nil) || got != nil && got.Error() != want {
			t.Errorf("Catch() = %v; want %q", got, want)
		}
		if ended != (want != "") {
			t.Errorf("with the error %q, the rest is left out: %v", want, ended)
		}
	}
}

// TestOnlyFailedStepsAreUndone returns from a function, fails in one, and panics in one.
func TestOnlyFailedStepsAreUndone(t *testing.T) {
	undone := 0
	do := func(f func()) {
		defer Undo(func() { undone++ })
		f()
	}
	do(func() {})
	if undone != 0 {
		t.Error("Undo undoes what a function that returns has done; want nothing undone")
	}
	err := Catch(func() { do(func() { Fail("broken") }) })
	if err == nil || undone != 1 {
		t.Errorf("after a failure: Catch() = %v, undone %d times; want the error, undone once", err, undone)
	}
	defer func() {
		if r := recover(); r != "other" || undone != 2 {
			t.Errorf("after a panic: recover() = %v, undone %d times; want the panic, undone twice in all", r, undone)
		}
	}()
	do(func() { panic("other") })
}

func TestOtherPanicsPass(t *testing.T) {
	defer func() {
		if r := recover(); r != "other" {
			t.Errorf("recover() = %v; want the panic to pass", r)
		}
	}()
	_ = Catch(func() { panic("other") })
}
