// All mixers: each line stands for NameInfo() in model/mixers/, NameMixerKind() in nn/mixer_*.cc
// and RuntimeName() in runtime/mixer_*.cc. No include guard: each user defines LINNET_MIXER.
LINNET_MIXER(CausalLinear)
LINNET_MIXER(Linear)
LINNET_MIXER(Full)
LINNET_MIXER(Kernel)
LINNET_MIXER(Reformer)
