// A non-owning reference to a callable, for kernel callbacks: passing a lambda allocates nothing.
// The callable must outlive the call it is passed to.
//
//   void Each(FunctionRef<void(int)> f) { f(1); }
//   Each([&](int i) { sum += i; });
#ifndef LINNET_BASE_FUNCTION_REF_H_
#define LINNET_BASE_FUNCTION_REF_H_

#include <memory>
#include <type_traits>
#include <utility>

namespace linnet {

template <typename Signature>
class FunctionRef;

template <typename Result, typename... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <typename F, typename = std::enable_if_t<!std::is_same_v<std::decay_t<F>, FunctionRef> &&
                                                    std::is_invocable_r_v<Result, F&, Args...>>>
  FunctionRef(F&& f)  // NOLINT: implicit on purpose
      : call_([](const void* target, Args... args) -> Result {
          using Target = std::remove_reference_t<F>;
          if constexpr (std::is_function_v<Target>) {
            return reinterpret_cast<Target*>(const_cast<void*>(target))(
                std::forward<Args>(args)...);
          } else {
            return (*static_cast<Target*>(const_cast<void*>(target)))(std::forward<Args>(args)...);
          }
        }) {
    if constexpr (std::is_function_v<std::remove_reference_t<F>>) {
      target_ = reinterpret_cast<const void*>(&f);
    } else {
      target_ = static_cast<const void*>(std::addressof(f));
    }
  }

  Result operator()(Args... args) const { return call_(target_, std::forward<Args>(args)...); }

 private:
  const void* target_ = nullptr;
  Result (*call_)(const void*, Args...) = nullptr;
};

}  // namespace linnet

#endif  // LINNET_BASE_FUNCTION_REF_H_
