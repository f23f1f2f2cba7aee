// The switch between fibers: a few instructions on x86-64, ucontext elsewhere.
#include "context.h"

#include <sys/mman.h>

#include <stdexcept>

namespace hookstats::simt {

char* map_pages(size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("simt: no memory");
  return static_cast<char*>(memory);
}

#if defined(__x86_64__)
// A switch in a few nanoseconds: ucontext's saves the signal mask, by a call of the system.
extern "C" void hookstats_simt_switch(void** save, void* resume);
asm(R"(
.text
.type hookstats_simt_switch, @function
hookstats_simt_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size hookstats_simt_switch, . - hookstats_simt_switch
)");

void Context::prepare(char* stack, void (*main)()) {
  // As though main had been called: six registers, its address, and where it never returns.
  void** top = reinterpret_cast<void**>(stack + kStackBytes) - 2;
  *top = reinterpret_cast<void*>(main);
  stack_pointer_ = top - 6;
}

void Context::swap(Context& from, Context& to) {
  hookstats_simt_switch(&from.stack_pointer_, to.stack_pointer_);
}
#else
void Context::prepare(char* stack, void (*main)()) {
  getcontext(&context_);
  context_.uc_stack = {stack, 0, kStackBytes};
  context_.uc_link = nullptr;
  makecontext(&context_, main, 0);
}

void Context::swap(Context& from, Context& to) { swapcontext(&from.context_, &to.context_); }
#endif

}  // namespace hookstats::simt
