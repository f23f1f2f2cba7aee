// A stack and where a program stands on it, to be left and come back to. simt.cpp alone includes
// this: what is in assembly is defined once.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace hookstats::simt {

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

struct Context {
  void* stack_pointer = nullptr;

  void prepare(char* stack, size_t bytes, void (*entry)()) {
    // As though the entry had been called: six registers, its address, and where it never returns.
    void** top = reinterpret_cast<void**>(stack + bytes) - 2;
    *top = reinterpret_cast<void*>(entry);
    stack_pointer = top - 6;
  }
  static void swap(Context& from, Context& to) {
    hookstats_simt_switch(&from.stack_pointer, to.stack_pointer);
  }
};
#else
struct Context {
  ucontext_t context;

  void prepare(char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack = {stack, 0, bytes};
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  static void swap(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
};
#endif

}  // namespace hookstats::simt
