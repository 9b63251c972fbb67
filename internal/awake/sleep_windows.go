package awake

import (
	"context"
	"fmt"
	"unsafe"

	"golang.org/x/sys/windows"
)

var (
	power    = windows.NewLazySystemDLL("powrprof.dll")
	register = power.NewProc("PowerRegisterSuspendResumeNotification")
	remove   = power.NewProc("PowerUnregisterSuspendResumeNotification")
)

// Power events (WM_POWERBROADCAST), and the flag for a callback.
const (
	suspend       = 4
	resumeByItem  = 7
	resumeItself  = 18
	notifyByCalls = 2
)

// Watch calls sleeping before the machine sleeps, and again after it woke, until ctx
// ends. Windows waits about two seconds for the first call.
func Watch(ctx context.Context, sleeping func(asleep bool)) error {
	subscription := struct{ callback, context uintptr }{callback: windows.NewCallback(func(_ uintptr, event uint32, _ uintptr) uintptr {
		switch event {
		case suspend:
			sleeping(true)
		case resumeByItem, resumeItself:
			sleeping(false)
		}
		return 0
	})}
	var handle uintptr
	if code, _, _ := register.Call(notifyByCalls, uintptr(unsafe.Pointer(&subscription)), uintptr(unsafe.Pointer(&handle))); code != 0 {
		return fmt.Errorf("PowerRegisterSuspendResumeNotification: %w", windows.Errno(code))
	}
	<-ctx.Done()
	_, _, _ = remove.Call(handle)
	return nil
}
